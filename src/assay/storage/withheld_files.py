"""Decides which workspace files no prompt and no sandbox receives: ignored files and secrets.

Detects passwords, tokens and logins that configuration and data files assign to a name.
"""

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from assay.storage.gitignore import Repository, Rule, is_ignored, look_up_repository, parse_rules
from assay.text.globs import matches

_SUFFIXES: Final = frozenset(
    {
        *(".json", ".jsonc", ".json5", ".yaml", ".yml", ".toml", ".xml", ".plist", ".properties"),
        *(".ini", ".cfg", ".conf", ".cnf", ".config", ".env", ".tfvars", ".vars", ".local"),
        *(".txt", ".sh", ".sql", ".service", ""),
    }
)
_WORDS: Final = (b"passw", b"pwd", b"secret", b"token", b"key", b"_pass", b"://")
_VALUE: Final = rb"(?P<quote>[\"']?)(?P<value>[^\s\"',;<>{}\[\]]{8,512})"
_ASSIGNED: Final = re.compile(
    rb"(?P<name>passw(?:or)?d|passphrase|pwd|_pass|secret(?:[_-]?(?:access)?[_-]?key)?|token"
    rb"|api[_-]?key|access[_-]?key|auth[_-]?key|private[_-]?key|encryption[_-]?key)"
    rb"[\"']?(?:\s*(?::=|=>|[:=])\s*|\s*>\s*)" + _VALUE,
    re.IGNORECASE,
)
_LOGIN: Final = re.compile(
    rb"[a-z][a-z0-9+.-]{1,30}://[^\s:@/\"'<>]{0,100}:(?P<value>[^\s@\"'<>]{6,200})@[\w\[]",
    re.IGNORECASE,
)
_BEFORE_NAME: Final = 32
_NO_SECRET: Final = re.compile(
    rb"(?:public|next|prev|page|continu\w*|cursor|sync|csrf|xsrf|hash(?:ed)?|type|special|added|pad|mask"
    rb"|idempotency|cache|sort|primary|foreign|partition)[\w.-]{0,12}$",
    re.IGNORECASE,
)
_PASSWORD: Final = re.compile(rb"passw|pwd|_pass|passphrase", re.IGNORECASE)
_MADE_UP_VALUE: Final = re.compile(
    rb"example|dummy|fake|sample|change[_-]?me|placeholder|redacted|your[_-]|abcdef|123456|xxxx|\*\*\*|\$\{|\$\(|\{\{|%\(",
    re.IGNORECASE,
)
_TOKEN_VALUE: Final = re.compile(rb"[A-Za-z0-9+/_.~=-]{20,512}")
_HEX: Final = re.compile(rb"[0-9a-f]{32,128}|[0-9A-F]{32,128}")
_LEAST_PASSWORD: Final = 10
_LEAST_DISTINCT_IN_VALUE: Final = 8


def assigned_secret(path: PurePosixPath, content: bytes) -> bool:
    """Return whether a configuration or data file assigns a likely secret to a secret's name."""
    if path.suffix.lower() not in _SUFFIXES or b"\0" in content:
        return False
    lowered = content.lower()
    if not any(word in lowered for word in _WORDS):
        return False
    if any(_is_password(found["value"]) for found in _LOGIN.finditer(content)):
        return True
    return any(_is_secret(content, found) for found in _ASSIGNED.finditer(content))


def _is_secret(content: bytes, found: re.Match[bytes]) -> bool:
    before = content[max(0, found.start() - _BEFORE_NAME) : found.start()]
    if _NO_SECRET.search(before):
        return False
    value = found["value"]
    return _is_password(value) if _PASSWORD.search(found["name"]) else _is_random(value)


def _is_password(value: bytes) -> bool:
    """Return whether a value has letters of both cases and digits; most words have not."""
    return len(value) >= _LEAST_PASSWORD and _is_mixed(value)


def _is_random(value: bytes) -> bool:
    if not _TOKEN_VALUE.fullmatch(value):
        return False
    return _is_mixed(value) or (
        _HEX.fullmatch(value) is not None and not _MADE_UP_VALUE.search(value) and _is_varied(value)
    )


def _is_mixed(value: bytes) -> bool:
    kinds = (rb"[a-z]", rb"[A-Z]", rb"[0-9]")
    mixed = all(re.search(kind, value) for kind in kinds)
    return mixed and _is_varied(value) and not _MADE_UP_VALUE.search(value)


def _is_varied(value: bytes) -> bool:
    return len(set(value)) >= _LEAST_DISTINCT_IN_VALUE


IGNORED: Final = "ignored by git"
BY_NAME: Final = "named like a file with secrets"
BY_SETTING: Final = "named in the setting workspace.secret_names"
_PRIVATE_KEY: Final = "holds a private key"
_TOKEN: Final = "holds an access token"  # noqa: S105 - says why, and is none
_CREDENTIAL: Final = "holds a credential"

_SECRET_FOLDERS: Final = re.compile(
    r"(?:.*/)?(?:\.aws|\.ssh|\.gnupg|\.kube|\.azure|\.oci|\.config/gcloud)", re.IGNORECASE
)
_SECRET_FILES: Final = re.compile(
    r"(?:.*/)?(?:"
    r"\.env(?:\.[^/]+)?|[^/]+\.env|\.envrc"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?(?:[._-][^/]*(?<!pub))?|[^/]+\.(?:pem|key|ppk|p12|pfx|jks|keystore|kdbx)"
    r"|[._]netrc|\.npmrc|\.pypirc|\.pgpass|\.my\.cnf|\.htpasswd|\.git-credentials|\.dockercfg"
    r"|\.docker/config\.json|\.vault-token|\.s3cfg|\.boto|rclone\.conf|\.terraformrc|[^/]+\.tfstate(?:\.backup)?"
    r"|(?:[^/]+[._-])?credentials(?:\.(?:json|toml|ya?ml|ini|csv))?|\.vault_pass|\.dev\.vars"
    r"|secrets?\.(?:json|toml|ya?ml|ini)|(?:client_secret|service[-_]account)[^/]*\.json"
    r"|kubeconfig(?:\.ya?ml)?|[^/]+\.kubeconfig"
    r")",
    re.IGNORECASE,
)
_FOR_EVERYBODY: Final = re.compile(
    r".*\.(?:example|sample|template|tmpl|dist|defaults?)(?:\.[^/]+)?", re.IGNORECASE
)
_PUBLIC_BLOCK: Final = re.compile(rb"-----BEGIN (?:[A-Z0-9 ]*PUBLIC KEY|(?:X509 )?CERTIFICATE)")
_KEY_BLOCK: Final = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:\s|\\[nr]|[A-Za-z-]+: [^\r\n]*){1,20}[\"']?[ \t\"']*[A-Za-z0-9+/]{40}"
)
_TOKENS: Final = re.compile(
    rb"(?<![A-Za-z0-9_-])(?:"
    rb"sk-ant-[A-Za-z0-9_-]{40,}|sk-(?:proj-|or-v1-|svcacct-)[A-Za-z0-9_-]{40,}|sk-[A-Za-z0-9]{48}"
    rb"|sk-[0-9a-f]{32}|dop_v1_[0-9a-f]{64}|AGE-SECRET-KEY-1[0-9A-Z]{58}"
    rb"|gsk_[A-Za-z0-9]{40,}|gh[opsur]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,}"
    rb"|glpat-[A-Za-z0-9_.-]{20,}|A(?:KIA|SIA)[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}"
    rb"|xox[abeoprs]-[0-9]{8,}-[A-Za-z0-9-]{16,}|hf_[A-Za-z0-9]{34}|npm_[A-Za-z0-9]{36}"
    rb"|pypi-AgE[A-Za-z0-9_-]{50,}|e2b_[0-9a-f]{40}|[rs]k_live_[A-Za-z0-9]{24,}"
    rb"|SG\.[\w-]{22}\.[\w-]{43}|ya29\.[A-Za-z0-9_-]{40,}|xai-[A-Za-z0-9]{60,}"
    rb"|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"
    rb")(?![A-Za-z0-9_-])"
)
_CONFIGURED: Final = re.compile(
    rb"aws_secret_access_key[\"']?\s*[:=]\s*[\"']?(?P<aws>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])"
    rb"|\bclient-key-data:\s*(?P<kube>[A-Za-z0-9+/]{40,})"
    rb"|:_(?:authToken|auth|password)\s*=\s*[\"']?(?P<npm>[A-Za-z0-9+/=_-]{20,})"
    rb"|\bAccountKey=(?P<azure>[A-Za-z0-9+/]{80,}={0,2})"
    rb"|hooks\.slack\.com/services/(?P<slack>T[A-Z0-9]{6,}/B[A-Z0-9]{6,}/[A-Za-z0-9]{20,})"
    rb"|discord(?:app)?\.com/api/webhooks/[0-9]{10,}/(?P<discord>[A-Za-z0-9_-]{40,})"
    rb"|^[ \t]*machine\s+\S+\s+login\s+\S+\s+password\s+(?P<netrc>\S{8,})"
    rb"|\"auths\"\s*:[^\0]{0,400}?\"auth\"\s*:\s*\"(?P<docker>[A-Za-z0-9+/]{20,}={0,2})\"",
    re.IGNORECASE | re.MULTILINE,
)
"""Secrets with a known name in front: cloud, cluster, registry, login."""
_BEFORE: Final = (
    (b"aws_secret_access_key",),
    (b"client-key-data",),
    (b":_auth",),
    (b":_password",),
    (b"accountkey=",),
    (b"hooks.slack.com/services/",),
    (b"/api/webhooks/",),
    (b"machine", b"login", b"password"),
    (b'"auths"', b'"auth"'),
)
"""Words of these names: most files have none of them, and skip the search."""
_MADE_UP: Final = re.compile(rb"example|dummy|fake|abcdef|123456|xxxx", re.IGNORECASE)
_LEAST_DISTINCT: Final = 9


def secret_by_name(path: PurePosixPath, *, folder: bool) -> str:
    """Return why the name of a path marks a secret; empty if it does not."""
    text = str(path)
    if folder:
        return BY_NAME if _SECRET_FOLDERS.fullmatch(text) else ""
    secret = _SECRET_FILES.fullmatch(text) and not _FOR_EVERYBODY.fullmatch(text)
    return BY_NAME if secret else ""


def secret_by_content(content: bytes, path: PurePosixPath | None = None) -> str:
    """Return which secret a file contains; empty if there is none, or only a placeholder.

    Files with a configuration path are also searched for assigned passwords and tokens.
    """
    content = _as_utf_8(content)
    if b"PRIVATE KEY" in content and _KEY_BLOCK.search(content):
        return _PRIVATE_KEY
    if any(_is_real(found[0]) for found in _TOKENS.finditer(content)):
        return _TOKEN
    lowered = content.lower()
    if any(all(word in lowered for word in words) for words in _BEFORE):
        named = (found[found.lastgroup or 0] for found in _CONFIGURED.finditer(content))
        if any(map(_is_real, named)):
            return _CREDENTIAL
    return _CREDENTIAL if path is not None and assigned_secret(path, content) else ""


def _as_utf_8(content: bytes) -> bytes:
    """Return the text as UTF-8; some editors write UTF-16."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode("utf-8", "replace")
    return content


def _is_real(secret: bytes) -> bool:
    return len(set(secret)) >= _LEAST_DISTINCT and not _MADE_UP.search(secret)


def is_public(path: PurePosixPath, content: bytes) -> bool:
    """Return whether a file with the name of a key contains only public data."""
    return (
        path.suffix.lower() == ".pem"
        and b"PRIVATE KEY" not in content
        and bool(_PUBLIC_BLOCK.search(content))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRules:
    """A folder that is being read, with the rules for its contents."""

    path: PurePosixPath
    rules: tuple[Rule, ...]
    why: str = ""
    """Why everything in it is withheld, apart from exceptions."""
    included: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Decides for the paths of one workspace what is withheld."""

    repository: Repository
    include: frozenset[PurePosixPath]
    above: frozenset[PurePosixPath]
    """The parent folders of included paths."""
    secret_names: tuple[str, ...] = ()
    """Globs of names that the user has added to those of secrets."""

    def start(self) -> FolderRules:
        root = PurePosixPath()
        return FolderRules(path=root, rules=self.repository.rules, included=root in self.include)

    def ruled(self, place: FolderRules, content: bytes) -> FolderRules:
        """Add the rules of the ignore file in a folder."""
        base = self._name(place.path) + "/" if place.path.parts else self.repository.prefix
        return replace(place, rules=(*place.rules, *parse_rules(content, base)))

    def enter(self, place: FolderRules, path: PurePosixPath) -> FolderRules:
        """Return the rules of a subfolder."""
        included = place.included or path in self.include
        why = "" if included else place.why or self._of_folder(place, path)
        return FolderRules(path=path, rules=place.rules, why=why, included=included)

    def is_closed(self, place: FolderRules) -> bool:
        """Return whether no file in a folder may be read."""
        tracked = place.why == IGNORED and self._name(place.path) in self.repository.tracked
        return bool(place.why) and place.path not in self.above and not tracked

    def of_file(self, place: FolderRules, path: PurePosixPath) -> str:
        """Return why the path of a file is withheld; empty if it is not. Ignores the content."""
        if self.is_included(place, path):
            return ""
        name = self._name(path)
        why = place.why or (IGNORED if is_ignored(place.rules, name, folder=False) else "")
        if why == IGNORED and name in self.repository.tracked:
            why = ""
        return why or self._secret(path, folder=False)

    def is_included(self, place: FolderRules, path: PurePosixPath) -> bool:
        return place.included or path in self.include

    def _of_folder(self, place: FolderRules, path: PurePosixPath) -> str:
        if secret := self._secret(path, folder=True):
            return secret
        return IGNORED if is_ignored(place.rules, self._name(path), folder=True) else ""

    def _secret(self, path: PurePosixPath, *, folder: bool) -> str:
        added = bool(self.secret_names) and matches(path, self.secret_names)
        return BY_SETTING if added else secret_by_name(path, folder=folder)

    def _name(self, path: PurePosixPath) -> str:
        return f"{self.repository.prefix}{path}"


def build_guard(
    folder: Path, include: Iterable[PurePosixPath], secret_names: Iterable[str] = ()
) -> Guard:
    """Read the rules of a folder and its repository."""
    named = frozenset(include)
    return Guard(
        repository=look_up_repository(folder),
        include=named,
        above=frozenset(parent for path in named for parent in path.parents),
        secret_names=tuple(secret_names),
    )
