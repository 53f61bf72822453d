"""Old crates without a Debian package, as far as reference solutions need them.

Only suite validation uses these, to show that the tests of an exercise accept its reference.
"""

import re
from pathlib import PurePosixPath
from typing import Final

_VERSION: Final = re.compile(r'((?:^[\w-]+|version)\s*=\s*)"[^"]*"', re.MULTILINE)
_OLD_RAND: Final = re.compile(r'^rand\s*=\s*"0\.3[^"]*"', re.MULTILINE)
_RAND_FOLDER: Final = "rand-0.3"
_RAND_MANIFEST: Final = '[package]\nname = "rand"\nversion = "0.3.0"\nedition = "2021"\n'
_RAND_SOURCE: Final = """\
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

pub struct ThreadRng(u64);

pub fn thread_rng() -> ThreadRng {
    ThreadRng(RandomState::new().build_hasher().finish())
}

pub trait Rng {
    fn next_u64(&mut self) -> u64;

    fn choose<'a, T>(&mut self, values: &'a [T]) -> Option<&'a T> {
        let place = self.next_u64() as usize % values.len().max(1);
        values.get(place)
    }
}

impl Rng for ThreadRng {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 16
    }
}
"""


def relaxed(manifest: str) -> dict[PurePosixPath, str]:
    """Return the files of a manifest that accepts any version of its crates, or a replacement.

    The exact version does not matter if the reference compiles.
    """
    head, mark, dependencies = manifest.partition("[dependencies]")
    files: dict[PurePosixPath, str] = {}
    loose = _VERSION.sub(r'\1"*"', dependencies)
    if _OLD_RAND.search(dependencies):
        loose = re.sub(r"(?m)^rand = .*$", f'rand = {{ path = "{_RAND_FOLDER}" }}', loose)
        files[PurePosixPath(_RAND_FOLDER, "Cargo.toml")] = _RAND_MANIFEST
        files[PurePosixPath(_RAND_FOLDER, "src/lib.rs")] = _RAND_SOURCE
    files[PurePosixPath("Cargo.toml")] = head + mark + loose
    return files
