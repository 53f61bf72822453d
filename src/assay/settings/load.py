"""All settings, as frozen values. The only module that reads the environment.

The first source that has a value wins: the command line, `ASSAY_…` variables
(`ASSAY_SANDBOX__POOL_SIZE`, `ASSAY_STATE_DIR`), the project's `.env` (a few settings only), the
settings file, the default. Provider keys come from their usual variables, then that `.env`, then a
separate file that only its owner may read.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field, SecretStr, ValidationError

from assay.contracts.errors import UsageError
from assay.contracts.execution import Isolation
from assay.files import is_private
from assay.settings.executor import (
    DEFAULT_PORT,
    EXECUTOR_VARIABLES,
    ExecutorSettings,
    RemoteSettings,
)
from assay.settings.project_env import ProjectEnv, read_project_env
from assay.settings.sections import (
    MODELS_OF_FILES,
    BudgetSettings,
    ChatSettings,
    DockerSettings,
    E2BSettings,
    McpSettings,
    MemorySettings,
    NamedModels,
    NamedModelSettings,
    ScreeningSettings,
    ServeSettings,
    ToolSettings,
    WorkspaceSettings,
)
from assay.settings.types import (
    BackendName,
    HttpUrl,
    Packages,
    Paths,
    Positive,
    Seconds,
    Section,
    StrList,
    StrLists,
)

_PREFIX = "ASSAY_"
_NESTING = "__"
_KEYS = "api_keys"
KEY_VARIABLES: Final = (
    "OPENAI_API_KEY",
    "OPENROUTER_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "ANTHROPIC_API_KEY",
    "DEEPSEEK_API_KEY",
    "GROQ_API_KEY",
    "ASSAY_API_KEY",
)
"""Variables with keys of Assay's own providers; the last is for `models.base_url`."""
_E2B_KEY: Final = "E2B_API_KEY"
_NEVER_QUOTED: Final = frozenset(
    {_KEYS, "api_key", "base_url", "base_urls", "pip_environment", "index_environment"}
    | {"env", "headers", "database"}
)
"""Settings that contain a secret, or might after a mistake."""
_FOR_PIP: Final = re.compile(
    r"PIP_\w+|UV_(?!CACHE)\w+|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE"
    r"|HOME|LANG|LC_ALL|NETRC|XDG_CONFIG_(HOME|DIRS)",
    re.IGNORECASE,
)
_FOR_GIT: Final = (
    *("HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "EMAIL"),
    *("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"),
)
_OF_PROJECTS: Final = frozenset(
    {
        *("ASSAY_MODELS__DEFAULT", "ASSAY_MODELS__TIMEOUT_S", "ASSAY_AGENT__ATTEMPTS"),
        *(
            "ASSAY_AGENT__TIMEOUT_S",
            "ASSAY_AGENT__CHECK_TIMEOUT_S",
            "ASSAY_AGENT__BASELINE_TIMEOUT_S",
        ),
        *(
            "ASSAY_CHAT__STEPS",
            "ASSAY_CHAT__REPAIRS",
            "ASSAY_CHAT__CELL_TIMEOUT_S",
            "ASSAY_CHAT__FIGURES",
        ),
    }
)
"""Settings that a project's `.env` may have, in addition to keys and ASSAY_BASE_URL. None of them
controls isolation, screening, limits, caps, storage, or an address that gets the user's keys."""
_MODEL: Final = "ASSAY_MODELS__DEFAULT"
_BASE_URL: Final = "ASSAY_BASE_URL"
_OWN_KEY: Final = "ASSAY_API_KEY"
_TOP_VARIABLES: Final = {"ASSAY_CONFIG_DIR": "config_dir", "ASSAY_STATE_DIR": "state_dir"}
_SERVE_VARIABLES: Final = {"API_KEY": "api_key"}
_MODEL_VARIABLES: Final = {"ASSAY_BASE_URL": "base_url", "ASSAY_MODEL_PATH": "local_path"}


def key_variable_of(provider: str) -> str:
    """Return the variable with the key of a provider that another distribution declares."""
    return f"{provider.upper().replace('-', '_')}_API_KEY"


def _all_keys() -> tuple[str, ...]:
    # Reads the metadata of installed distributions, without importing any.
    installed = (key_variable_of(entry.name) for entry in entry_points(group="assay.providers"))
    return (*KEY_VARIABLES, _E2B_KEY, *installed)


def _runtime_dir() -> Path:
    if named := os.environ.get("ASSAY_RUNTIME_DIR"):
        return Path(named)
    if user := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(user) / "assay"
    return Path("/tmp") / f"assay-{os.getuid()}"  # noqa: S108 - owner and mode are checked on use


def _cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache") / "assay"


def _state_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / "assay"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise UsageError(
            "there is no home folder: HOME is not set, and this user has no account",
            hint="set HOME to a folder that you can write",
        ) from None


def expand_home(path: Path) -> Path:
    """Expand a leading tilde to the home folder.

    Raises:
        UsageError: If it names the home of an account that does not exist.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(
            f"{str(path)!r} names the home of an account that does not exist",
            hint="check the path; `./~x` is a file of that name",
        ) from None


def _pip_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _FOR_PIP.fullmatch(name)}


class SandboxSettings(Section):
    """Isolation of programs."""

    backend: BackendName = "auto"
    """`auto`, one of `BACKENDS`, or the name of an entry point of the group `assay.backends`."""
    options: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict[str, Mapping[str, Any]])
    """Options for backends of other distributions, by the name of the backend."""
    isolation: Isolation | None = None
    """Minimum isolation level; less is an error. Unset: the best available one."""
    namespaces: bool = True
    """Whether the native backend may use namespaces; without them, it uses Landlock alone."""
    preload: StrLists = (
        ("numpy", "pandas"),
        ("matplotlib.pyplot", "sklearn"),
    )
    """Modules to preload, in stages from light to heavy."""
    pool_size: Annotated[int, Field(ge=0, le=64)] = 3
    """Number of ready processes per stage."""
    max_concurrent: Positive = 32
    """Maximum number of parallel executions; more of them wait."""
    read_only: Paths = ()
    """More host paths that programs may read, at the same path."""
    site_packages: Path | None = None
    """Packages of a virtual environment, for sandboxes of the native backend; see `--env`."""
    runtime_dir: Path = Field(default_factory=_runtime_dir)
    """Folder that lists running engines, so that leftovers of a crash can be removed."""
    search_path: tuple[str, ...] = Field(default_factory=lambda: tuple(os.get_exec_path()))
    """Search path for toolchains in sandboxes."""
    packages: Packages = ()
    """Python packages to add to those of this interpreter: `requests==2.32.*`."""
    packages_dir: Path = Field(default_factory=lambda: _cache_dir() / "packages")
    """Folder of downloaded packages."""
    packages_mb: Positive = 8192
    """Maximum size of that folder; the least recently used packages are removed first."""
    index_environment: Mapping[str, str] = Field(
        default_factory=_pip_environment, repr=False, exclude=True
    )
    """Configures the package index. It may contain a password, so it is not shown."""
    hosts: StrList = ()
    """Hosts that programs may reach, `*.example.org:443`; empty: no network."""
    remote: RemoteSettings = Field(default_factory=RemoteSettings)
    docker: DockerSettings = Field(default_factory=DockerSettings)
    e2b: E2BSettings = Field(default_factory=E2BSettings)


class ModelSettings(NamedModels):
    """The default model, access to providers, and properties of single models."""

    default: Annotated[str, Field(min_length=1)] = "auto"
    base_url: HttpUrl | None = None
    """Address of a self-hosted OpenAI-compatible endpoint."""
    api_keys: Mapping[str, SecretStr] = Field(default_factory=dict[str, SecretStr], repr=False)
    """By variable name. Not allowed in the settings file."""
    local_path: Path | None = None
    """GGUF file of the embedded model, instead of the downloadable ones."""
    cache_dir: Path = Field(default_factory=_cache_dir)
    """Folder of downloaded weights."""
    idle_s: Seconds = 300.0
    """How long an unused embedded model stays in memory."""
    timeout_s: Seconds = 180.0
    """Maximum silence of a provider. Long, because some models reason before they write."""
    base_urls: Mapping[str, HttpUrl] = Field(default_factory=dict[str, HttpUrl])
    """By provider, if its address is not the usual one."""
    budget: BudgetSettings = Field(default_factory=BudgetSettings)
    pip_environment: Mapping[str, str] = Field(
        default_factory=_pip_environment, repr=False, exclude=True
    )
    """Configures pip's index. It may contain a password, so it is not shown."""
    search_path: tuple[str, ...] = Field(default_factory=lambda: tuple(os.get_exec_path()))
    """Search path for an interpreter with pip."""


class AgentSettings(Section):
    """Defaults for runs."""

    attempts: Positive | None = None
    """Maximum number of attempts. Unset: 8, or 16 for a small model."""
    timeout_s: Seconds = 1800.0
    """For a whole run."""
    check_timeout_s: Seconds = 180.0
    """For one check."""
    baseline_timeout_s: Annotated[float, Field(ge=0, le=86400)] = 60.0
    """For one check on the untouched files, before the first call to a model; 0: not run there."""
    memory_mb: Positive = 2048
    """For one execution; test runners and compilers need more than a short program."""
    disk_mb: Positive = 1024
    processes: Positive = 256
    layers_mb: Positive = 8192
    """Maximum size of the captured workspaces in the state folder. The least recently used ones are
    removed first; those of stored runs stay."""
    screening: Literal["off", "warn", "block"] = "warn"
    """Action on policy violations in generated code."""
    memory: Literal["off", "plan", "action", "all"] = "all"
    """When to recall lessons of earlier failures."""


class Settings(Section):
    """All settings."""

    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    models: ModelSettings = Field(default_factory=ModelSettings)
    agent: AgentSettings = Field(default_factory=AgentSettings)
    chat: ChatSettings = Field(default_factory=ChatSettings)
    screening: ScreeningSettings = Field(default_factory=ScreeningSettings)
    workspace: WorkspaceSettings = Field(default_factory=WorkspaceSettings)
    memory: MemorySettings = Field(default_factory=MemorySettings)
    mcp: McpSettings = Field(default_factory=McpSettings)
    tools: ToolSettings = Field(default_factory=ToolSettings)
    config_dir: Path = Field(default_factory=lambda: settings_file().parent)
    """Folder of the settings file, and of `tools` with custom tools."""
    executor: ExecutorSettings = Field(default_factory=ExecutorSettings)
    serve: ServeSettings = Field(default_factory=ServeSettings)
    state_dir: Path = Field(default_factory=_state_dir)
    """Folder of runs, sessions, keys and failure memory."""

    @property
    def bench_dir(self) -> Path:
        """Folder of exercises and toolchains for benchmarks."""
        return self.models.cache_dir / "bench"

    @property
    def fetched_go(self) -> Path:
        """Folder of the Go toolchain that Assay downloaded for benchmarks."""
        return self.bench_dir / "toolchains" / "go"


def color_disabled() -> bool:
    """Whether the user disabled colors in all programs; see no-color.org."""
    return bool(os.environ.get("NO_COLOR"))


def terminal_graphics() -> Literal["kitty", "iterm", "sixel", "file"]:
    """Graphics protocol of the terminal, as far as its variables show it."""
    term, program = (os.environ.get(name, "") for name in ("TERM", "TERM_PROGRAM"))
    if os.environ.get("TMUX") or term.startswith(("screen", "tmux")):
        # A multiplexer would have to pass graphics through, and seldom does.
        return "file"
    if "KITTY_WINDOW_ID" in os.environ or "kitty" in term or program == "ghostty":
        return "kitty"
    if program in {"iTerm.app", "WezTerm"}:
        return "iterm"
    return "sixel" if term.startswith(("foot", "mlterm")) or "sixel" in term else "file"


def load_settings(
    overrides: Mapping[str, Any] | None = None, *, project: Path | None = None
) -> Settings:
    """Merge defaults, file, a project's `.env`, environment and overrides, in this order.

    Raises:
        UsageError: If the file cannot be read, or a name or value is unknown.
    """
    merged: dict[str, Any] = {}
    of_project, environment = _from_project(project), _from_environment()
    for layer in (_from_file(), _from_credentials(), of_project, environment, overrides or {}):
        _merge(merged, layer)
    _keep_keys_apart(merged, of_project, (environment, overrides or {}))
    try:
        return _with_fetched_programs(Settings.model_validate(merged))
    except ValidationError as error:
        raise _explained(error) from error


def project_notice(project: Path) -> str:
    """Describe which names of a project's `.env` are used, and which are ignored; empty if none."""
    found = _project_env(project)
    used = [name for name in found.values if not os.environ.get(name)]
    parts = (
        f"uses {', '.join(used)} of {str(project / '.env')!r}" if used else "",
        f"a project may not set {', '.join(found.ignored)}" if found.ignored else "",
    )
    return "; ".join(filter(None, parts))


def _project_env(project: Path) -> ProjectEnv:
    found = read_project_env(project, {*_all_keys(), _BASE_URL, *_OF_PROJECTS})
    provider, named, _ = found.values.get(_MODEL, "").partition(":")
    if named and provider in MODELS_OF_FILES:
        values = {name: value for name, value in found.values.items() if name != _MODEL}
        return ProjectEnv(values=values, ignored=(*found.ignored, _MODEL))
    return found


def _from_project(project: Path | None) -> dict[str, Any]:
    if project is None:
        return {}
    given = _project_env(project).values
    keys = _all_keys()
    found = _placed({name: value for name, value in given.items() if name in keys})
    if address := given.get(_BASE_URL):
        found["models"]["base_url"] = address
    for name in _OF_PROJECTS.intersection(given):
        section, key = name.removeprefix(_PREFIX).lower().split(_NESTING)
        found.setdefault(section, {})[key] = given[name]
    return found


def _keep_keys_apart(
    merged: dict[str, Any], of_project: Mapping[str, Any], stronger: tuple[Mapping[str, Any], ...]
) -> None:
    """Remove the user's key if the project's `.env` sets the address that would receive it."""
    address = of_project.get("models", {}).get("base_url")
    if not address or any(layer.get("models", {}).get("base_url") for layer in stronger):
        return
    keys = merged["models"][_KEYS]
    own = of_project["models"][_KEYS].get(_OWN_KEY)
    keys.pop(_OWN_KEY, None)
    if own:
        keys[_OWN_KEY] = own


def _with_fetched_programs(settings: Settings) -> Settings:
    """Add the Go of `assay bench toolchains --install` to the search path of sandboxes.

    Nothing is added if the settings contain a search path.
    """
    sandbox = settings.sandbox
    folder = settings.fetched_go
    if "search_path" in sandbox.model_fields_set or not (folder / "compiled").is_file():
        return settings
    found = (str(folder / "go" / "bin"), *sandbox.search_path)
    return settings.model_copy(
        update={"sandbox": sandbox.model_copy(update={"search_path": found})}
    )


def _explained(error: ValidationError) -> UsageError:
    first = error.errors()[0]
    name = _name_of(first["loc"])
    if first["type"] == "extra_forbidden" and name.startswith('models."'):
        known = ", ".join(NamedModelSettings.model_fields)
        return UsageError(f"there is no setting {name!r}", hint=f"a model has: {known}")
    if first["type"] == "extra_forbidden":
        return UsageError(f"there is no setting {name!r}", hint="see docs/reference/settings.md")
    told = first["msg"].removeprefix("Value error, ").lower()
    expected = first.get("ctx", {}).get("expected")
    hint = f"choose from: {expected}" if expected else "see docs/reference/settings.md"
    # A whole table may contain a secret too.
    if _NEVER_QUOTED.intersection(first["loc"]) or isinstance(first["input"], Mapping):
        return UsageError(f"setting {name}: {told}", hint=hint)
    return UsageError(f"setting {name}: {told}, not {first['input']!r}", hint=hint)


def _name_of(location: tuple[int | str, ...]) -> str:
    """Return the name of a setting as users write it: `models."vllm:m".small`."""
    match location:
        case ("models", "named", str() as model, *rest):
            return ".".join(("models", f'"{model}"', *map(str, rest)))
        case ("models", "named"):
            return "models"
        case _:
            return ".".join(map(str, location))


def settings_file() -> Path:
    """Return the path of the settings file, which may not exist."""
    if named := os.environ.get("ASSAY_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME") or _home() / ".config"
    return Path(home) / "assay" / "config.toml"


_EXCLUDES_FILE: Final = re.compile(
    r"^\s*\[core\][^\[]*?^\s*excludesfile\s*=\s*\"?([^\"\n]+?)\"?\s*$",
    re.IGNORECASE | re.MULTILINE,
)


def git_ignore_file() -> Path | None:
    """Return the user's global Git ignore file; None without a home."""
    try:
        home = _home()
    except UsageError:
        return None
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git"
    named = os.environ.get("GIT_CONFIG_GLOBAL")
    for path in (Path(named),) if named else (home / ".gitconfig", folder / "config"):
        with suppress(OSError, UnicodeDecodeError):
            if found := _EXCLUDES_FILE.search(path.read_text()):
                with suppress(UsageError):
                    return expand_home(Path(found[1]))
    return folder / "ignore"


def git_environment() -> dict[str, str]:
    """Return the variables that lead git to the user's own configuration and name."""
    return {name: os.environ[name] for name in _FOR_GIT if name in os.environ}


def _from_file() -> dict[str, Any]:
    path = settings_file()
    try:
        found = tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        if os.environ.get("ASSAY_CONFIG"):
            raise UsageError(
                f"ASSAY_CONFIG names {str(path)!r}, which does not exist",
                hint="create the file or unset ASSAY_CONFIG",
            ) from None
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the settings file {str(path)!r}: {error}") from error
    if _holds_keys(found):
        raise UsageError(
            f"keys do not belong into {str(path)!r}, which others may read",
            hint=f"write them into {str(credentials_file())!r}, as in docs/reference/models.md",
        )
    return found


def _holds_keys(found: Mapping[str, Any]) -> bool:
    for path in (("models", _KEYS), ("sandbox", "e2b", "api_key"), ("serve", "api_key")):
        place: Any = found
        for name in path:
            place = cast("Any", place).get(name) if isinstance(place, dict) else None
        if place is not None:
            return True
    return False


def credentials_file() -> Path:
    """Return the path of the file of keys, which may not exist."""
    return settings_file().with_name("credentials.toml")


def _from_credentials() -> dict[str, Any]:
    """Read the keys from their file, unless other users can read or change it."""
    path = credentials_file()
    try:
        # Opened once, so that the checked file is the one that is read.
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            found = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        # The parser's message could quote a key.
        raise UsageError(
            f"{str(path)!r} is not TOML", hint='write lines like OPENAI_API_KEY = "…"'
        ) from None
    known = _all_keys()
    if unknown := [name for name in found if name not in known]:
        raise UsageError(
            f"{str(path)!r}: there is no key {unknown[0]!r}", hint=f"known are {', '.join(known)}"
        )
    return _placed(found)


def _placed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Move keys to the sections that use them."""
    of_models = {name: key for name, key in keys.items() if name != _E2B_KEY}
    placed: dict[str, Any] = {"models": {_KEYS: of_models}}
    if _E2B_KEY in keys:
        placed["sandbox"] = {"e2b": {"api_key": keys[_E2B_KEY]}}
    return placed


def _check_private(path: Path, status: os.stat_result) -> None:
    if is_private(status):
        return
    if status.st_uid != os.geteuid():
        raise UsageError(
            f"{str(path)!r} holds keys and belongs to another user",
            hint=f"run `sudo chown {os.geteuid()} {path}`",
        )
    raise UsageError(
        f"{str(path)!r} holds keys and is open to others", hint=f"run `chmod 600 {path}`"
    )


def _from_environment() -> dict[str, Any]:
    known = _all_keys()
    found = _placed({name: key for name in known if (key := os.environ.get(name, "").strip())})
    found |= _set_by(_TOP_VARIABLES)
    found["models"] |= _set_by(_MODEL_VARIABLES)
    found["executor"] = _set_by(EXECUTOR_VARIABLES)
    found["serve"] = _set_by(_SERVE_VARIABLES)
    host, port = os.environ.get("CODE_EXECUTOR_HOST"), os.environ.get("CODE_EXECUTOR_PORT")
    if host or port:
        address = f"{host or 'localhost'}:{port or DEFAULT_PORT}"
        found.setdefault("sandbox", {}).update(backend="remote", remote={"addresses": address})
    if engine := os.environ.get("DOCKER_HOST"):
        found.setdefault("sandbox", {})["docker"] = {"socket": engine}
    for name, value in sorted(os.environ.items()):
        if not name.startswith(_PREFIX) or _NESTING not in name:
            continue
        *sections, key = name.removeprefix(_PREFIX).lower().split(_NESTING)
        place = found
        for depth, section in enumerate(sections, 1):
            inner = place.setdefault(section, {})
            if not isinstance(inner, dict):
                raise UsageError(f"setting {'.'.join(sections[:depth])}: {name} cannot add to it")
            place = cast("dict[str, Any]", inner)
        place[key] = value
    return found


def _set_by(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the values of these variables by setting; skip empty ones."""
    return {
        setting: value for name, setting in variables.items() if (value := os.environ.get(name))
    }


def _merge(into: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for name, value in layer.items():
        if isinstance(value, Mapping):
            inner = into.setdefault(name, {})
            if isinstance(inner, dict):  # Otherwise validation reports the value.
                _merge(inner, value)  # pyright: ignore[reportUnknownArgumentType] - a table
        elif value is not None:
            into[name] = value
