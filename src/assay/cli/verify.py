"""`assay verify`: checks a certificate's signature and files, and runs its checks again."""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import click

from assay.cli.options import FILE, FOLDER, JSON_OBJECT, to_json
from assay.contracts.errors import ExitCode, JournalError, UsageError

if TYPE_CHECKING:
    from assay.runs.reverify import ReverifyResult
    from assay.settings.load import Settings
    from assay.storage.certificates import Certificate, Differences

_NAMES_SHOWN: Final = 20
_FINGERPRINT: Final = 16


@click.command(name="verify")
@click.argument("certificate", type=FILE)
@click.option(
    "--workspace",
    type=FOLDER,
    help="Folder with the files.  [default: the one whose `.assay` folder has the certificate]",
)
@click.option("--exclude", multiple=True, metavar="GLOB", help="Files not to read (repeatable).")
@click.option("--key", metavar="HEX", help="Accept only certificates signed by this public key.")
@click.option(
    "--env",
    default="auto",
    metavar="PATH",
    help="Virtual environment of a run with --env PATH; others need no option.",
)
@click.option("--no-run", is_flag=True, help="Check only signature and files; run nothing.")
@JSON_OBJECT
def verify(certificate: Path, **options: Any) -> int:
    """Check the signature and the files of a CERTIFICATE, and run its checks again.

    Prints `verified` (exit code 0), `changed` if the files differ from the certified ones (1),
    `failed` if the checks no longer pass (1), or `tampered` if the certificate is invalid (5).
    """
    from assay.settings.load import load_settings
    from assay.storage.certificates import compare_files, read_certificate
    from assay.storage.read_workspace import read_workspace
    from assay.wiring import open_layers

    settings = load_settings()
    try:
        read = read_certificate(certificate)
        _check_key(read, options["key"])
    except JournalError as error:
        if options["as_json"]:
            click.echo(to_json({"status": "tampered", "reason": str(error)}))
        else:
            _say("tampered", "red", str(error))
            click.echo(f"hint: {error.hint}", err=True)
        return ExitCode.TAMPERING
    beside = certificate.absolute().parent
    if options["workspace"] is None and beside.name != ".assay":
        raise UsageError(
            "the folder of this certificate's files is unknown", hint="add --workspace DIR"
        )
    folder = options["workspace"] or beside.parent
    # Certified files are compared even if a run would withhold them now.
    certified = tuple(map(PurePosixPath, read.files))
    exclude = options["exclude"]
    try:
        tree = open_layers(settings).capture(folder, exclude=exclude, include=certified)
    except JournalError:
        # The state folder cannot be written: the files are held in memory.
        tree = read_workspace(folder, exclude=exclude, include=certified)
    differences = compare_files(read, tree)
    again = None
    if not differences.any and not options["no_run"]:
        import anyio

        from assay.runs.reverify import reverify

        again = anyio.run(partial(reverify, read, tree, settings, env=options["env"]))
    return _tell_check(read, differences, again, settings, as_json=options["as_json"])


def _check_key(certificate: "Certificate", wanted: str | None) -> None:
    if wanted is not None and certificate.key != wanted.strip().lower():
        raise JournalError(
            f"the certificate was signed by another key, {certificate.key}",
            hint="do not trust it unless you know that key",
        )


def _tell_check(
    certificate: "Certificate",
    differences: "Differences",
    again: "ReverifyResult | None",
    settings: "Settings",
    *,
    as_json: bool,
) -> int:
    from assay.storage.signing_keys import public_key

    own = certificate.key == public_key(settings.state_dir)
    status = "changed" if differences.any else "failed" if again and again.trouble else "verified"
    if as_json:
        fields = {
            "status": status,
            "run": certificate.run,
            "grade": certificate.grade.value,
            "key": certificate.key,
            "signed_here": own,
            "changed": [str(path) for path in differences.changed],
            "missing": [str(path) for path in differences.missing],
            "extra": [str(path) for path in differences.extra],
            "proof": _proof_fields(again) if again else None,
        }
        click.echo(to_json(fields))
    else:
        _print_check(status, certificate, differences, again, own=own)
    return ExitCode.ACCEPTED if status == "verified" else ExitCode.NOT_ACCEPTED


def _proof_fields(again: "ReverifyResult") -> dict[str, Any]:
    reports = again.verdict.reports
    return {
        "holds": again.holds,
        "reason": again.trouble or again.verdict.reason,
        "failed": list(again.failed),
        "not_repeated": again.not_repeated,
        "tests": {test.id: test.status.value for test in again.verdict.tests},
        "canaries_planted": sum(report.canaries_planted for report in reports),
        "canaries_caught": sum(report.canaries_caught for report in reports),
    }


def _print_check(
    status: str,
    certificate: "Certificate",
    differences: "Differences",
    again: "ReverifyResult | None",
    *,
    own: bool,
) -> None:
    from assay.cli.render.text import count, one_line, reports

    goal = one_line(certificate.goal)
    _say(status, "green" if status == "verified" else "red", f"{certificate.grade.value}: {goal}")
    whose = "by the key of this machine" if own else "by another key"
    click.echo(f"  signature  good, {whose}: {certificate.key[:_FINGERPRINT]}…")
    certified = count(len(certificate.files), "file")
    extra = len(differences.extra)
    beside = f"; {count(extra, 'file')} beside them took no part" if extra else ""
    if differences.any:
        click.echo("  files      differ from the certified ones:")
        for what in ("changed", "missing"):
            for path in getattr(differences, what)[:_NAMES_SHOWN]:
                click.echo(f"    {what}  {one_line(str(path))}")
    else:
        click.echo(f"  files      {certified}, as certified{beside}")
    if again is None:
        click.echo("  proof      was not run again")
        return
    click.echo(f"  proof      {reports(again.verdict.reports)}")
    if again.trouble:
        click.echo(f"             {one_line(again.trouble, 600)}")
    if again.not_repeated:
        click.echo(f"             not repeated: {again.not_repeated}")
    for test in again.failed[:_NAMES_SHOWN]:
        click.echo(f"    failed  {one_line(test)}")


def _say(word: str, colour: str, rest: str) -> None:
    from assay.settings.load import color_disabled

    shown = click.style(word, fg=colour, bold=True)
    click.echo(f"{shown}  {rest}", color=False if color_disabled() else None)
