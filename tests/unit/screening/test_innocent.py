"""Ordinary programs that look a little like dangerous ones, and must not be named."""

from pathlib import PurePosixPath

import pytest

from assay.screening.rules import ScreeningPolicy
from assay.screening.scan import Screening

MAIN = PurePosixPath("main.py")
SCREEN = Screening(ScreeningPolicy())

DATA_SCIENCE = (
    "import pandas as pd\ndf = pd.read_csv('data.csv')\ndf.eval('c = a + b', inplace=True)",
    "import pandas as pd\npd.eval('a + b')",
    "import pandas as pd\ndf = pd.DataFrame({'a': [1]})\ndf.query('a > 0').to_csv('out.csv')",
    "import pandas as pd\npd.read_csv('data/in.csv').to_parquet('out/part.parquet')",
    "df['system'] = df['exec'].map(len)",
    "df.loc[df['open'] > df['close'], 'eval'] = 1",
    "import pandas as pd\npd.to_datetime(df.pop('date')).dt.floor('D')",
    "import pandas as pd\nwith pd.ExcelWriter('out.xlsx') as w:\n    df.to_excel(w)",
    "import numpy as np\nnp.save('/tmp/cache.npy', np.arange(3))",
    "import numpy as np\na = np.lib.stride_tricks.sliding_window_view(np.arange(9), 3)",
    "import numpy as np\nx = np.array([1.0]); x.ctypes.data",
    "import numpy as np\nrng = np.random.default_rng(0); rng.spawn(3)",
    "import numpy as np\nnp.genfromtxt('x.txt', delimiter=',').sum(axis=0)",
    "import numpy as np\nf = np.vectorize(lambda x: x ** 2)\nf(np.ones(3))",
    "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as p\np.savefig('a.png')",
    "import pandas as pd\npd.read_csv('https.csv')\npd.read_parquet('data/a.parquet')",
    "import numpy as np\nnp.load('a.npy')\nnp.load('a.npy', allow_pickle=False)",
    "import os\nclass A: pass\nvars(A)",
    "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nfig.savefig('/app/plot.png')",
    "from sklearn.model_selection import train_test_split as split\nsplit([1, 2], [0, 1])",
    "from sklearn.pipeline import Pipeline\nPipeline([('a', A())]).fit(x, y).score(x, y)",
    "from sklearn.base import BaseEstimator\nclass M(BaseEstimator):\n    def fit(self, x): ...",
    "import joblib\njoblib.dump(model, 'model.joblib')\nmodel = joblib.load('model.joblib')",
    "import pickle\nwith open('model.pkl', 'wb') as f:\n    pickle.dump(model, f)",
    "import torch\nmodel.eval()\nwith torch.no_grad():\n    model(x)",
    "import sympy\nsympy.sympify('x + 1').subs('x', 2).evalf()",
    "import re\npattern = re.compile(r'\\d+')\npattern.sub('', 'a1')",
    "import ast\nast.literal_eval('[1, 2]')",
    "import sqlite3\ncon = sqlite3.connect('x.db')\ncon.execute('select 1').fetchall()",
    "cursor.executemany('insert into t values (?)', rows)",
    "import statistics, math, itertools, functools\nfunctools.reduce(max, [1, 2])",
    "from multiprocessing import Pool\nwith Pool(2) as pool:\n    pool.map(abs, [-1])",
    "from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor().submit(abs, -1)",
    "import threading\nthreading.Thread(target=print).start()",
    "import asyncio\nasyncio.run(asyncio.sleep(0))",
    "import asyncio\nasync def main():\n    await asyncio.gather(*(f(i) for i in range(3)))",
)

FILES = (
    "import os\nos.makedirs('out', exist_ok=True)\nos.path.join('out', 'a.csv')",
    "import os\nfor name in os.listdir('.'):\n    os.stat(name).st_size",
    "import os\nos.getpid(), os.cpu_count(), os.environ.get('SEED', '0')",
    "import os\nos.remove('old.csv'); os.rename('a', 'b')",
    "import os\nos.remove('/tmp/x'); os.makedirs('/app/out')",
    "import shutil\nshutil.rmtree('build', ignore_errors=True)\nshutil.copy('a', 'b')",
    "open('out.txt', 'w').write('x')",
    "open('/etc/os-release').read()",
    "open('/proc/meminfo', 'r').readline()",
    "open('/dev/null', 'w')",
    "open('/tmp/assay/../x', 'w')",
    "open('/app/out/result.json', 'wb')",
    "open(f'/{folder}/x', 'w')",
    "open(f'{folder}/etc/x', 'w')",
    "open(path, mode)",
    "from pathlib import Path\nPath('out').mkdir(exist_ok=True)\nPath('out/a').write_text('x')",
    "from pathlib import Path\n(Path(__file__).parent / 'etc' / 'x').write_text('y')",
    "from pathlib import Path\nPath('/usr/share/dict/words').read_text()",
    "from pathlib import PurePosixPath\nPurePosixPath('/etc') / 'hosts'",
    "import tempfile\nwith tempfile.TemporaryDirectory() as d:\n    open(d + '/x', 'w')",
    "text.replace('/etc', '/usr'); name.rename('/x')",
    "import webbrowser_stub, socketlike",
    "import zipfile\nzipfile.ZipFile('x.zip').extractall('out')",
)

LOOK_ALIKES = (
    "class Parser:\n    def eval(self, tree):\n        return self.eval(tree.left)",
    "def eval(expression):\n    return calculate(expression)\n\nprint(eval('1 + 1'))",
    "from calculator import eval\neval('1 + 1')",
    "def run(exec):\n    return exec('x')",
    "def f():\n    exec = g\n    return exec(1)",
    "[eval(x) for eval, x in pairs]",
    "self.system('x'); self.os.system('y')",
    "machine.os.system.boot()",
    "print('import subprocess; os.system(1)')",
    "'''Never use eval() or __subclasses__().'''",
    "# import socket\n'a {b} c'.format(b=1)",
    "f'{x.__class__.__name__}: {len(y)}'",
    "'{0.name} {1[key]!r}'.format(a, b)",
    "type(x).__name__, x.__class__.__qualname__, cls.__mro__, Model.__bases__",
    "def f(): ...\nf.__code__.co_varnames, f.__doc__, f.__wrapped__, f.__dict__",
    "class A(B):\n    def __init__(self):\n        super().__init__()\n        self.__dict__",
    "getattr(model, name)(x)",
    "getattr(config, 'system', None)",
    "setattr(self, key, value)",
    "vars(args)['system']",
    "globals()['table'] = 1",
    "import importlib\nimportlib.import_module('numpy')",
    "import importlib\nimportlib.import_module(f'plugins.{name}')",
    "import importlib\nimportlib.reload(module)",
    "from . import subprocess\nfrom .socket import connect",
    "import sys\nsys.exit(0); sys.modules[__name__]; sys.modules['json'].dumps(1)",
    "import inspect\ninspect.signature(f).parameters; inspect.currentframe().f_lineno",
    "import traceback\ntraceback.print_exc()",
    "import signal\nsignal.alarm(5)",
    "import gc\ngc.collect()",
    "import types\ntypes.SimpleNamespace(a=1); types.MappingProxyType({})",
    "import types\ndef f() -> types.FunctionType: ...\nisinstance(f, types.FunctionType)",
    "from multiprocessing import Pool, Queue\nPool(2).map(abs, [-1])",
    "import logging.config\nlogging.config.dictConfig({'version': 1})",
    "import importlib.util\nimportlib.util.find_spec('numpy')",
    "import faulthandler\nfaulthandler.enable()",
    "import timeit\ntimeit.timeit(lambda: sum(range(9)), number=3)",
    "import zipfile\nzipfile.ZipFile('a.zip').extractall('out')",
    "import urllib.parse\nurllib.parse.quote('x')",
    "from http import HTTPStatus\nHTTPStatus.OK",
    "import code_generation, subprocesses, requests_like",
    "compile = re.compile\ncompile('x')",
    "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): self.assertTrue(True)",
    "import pytest\n@pytest.fixture\ndef socket(): return object()",
    "match command:\n    case 'exec': pass\n    case Popen(system=s): print(s)",
    "kill = system = popen = 3\nprint(kill, system, popen)",
    "@dataclass\nclass Policy:\n    system: str = 'x'\n    f_globals_count: int = 0",
)


@pytest.mark.parametrize("code", [*DATA_SCIENCE, *FILES, *LOOK_ALIKES])
def test_ordinary_code_is_not_named(code: str) -> None:
    assert SCREEN(MAIN, code.encode()) == ()
    compile(code, "main.py", "exec")


def test_there_are_enough_of_them_to_mean_something() -> None:
    assert len({*DATA_SCIENCE, *FILES, *LOOK_ALIKES}) >= 60
