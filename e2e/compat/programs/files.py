"""Tools that read files, hold much, and write files: archives, sorting, git, video."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compat.programs.common import log_lines, version_of
from compat.runner import Program, Stage, Wrong


def sha256(path: Path) -> str:
    """The digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text(stage: Stage, lines: int) -> Path:
    """A file of log lines."""
    path = stage.folder / "text"
    path.write_bytes(log_lines(lines))
    return path


def drive_xz(stage: Stage) -> str:
    """The largest dictionaries, up and down."""
    path = text(stage, 130_000)
    before = sha256(path)
    stage.run(["xz", "-T1", "--lzma2=preset=6,dict=32MiB", "-k", path], name="compress")
    packed = sha256(Path(f"{path}.xz"))
    path.unlink()
    stage.run(["xz", "-d", f"{path}.xz"], name="decompress")
    if sha256(path) != before:
        raise Wrong("the file is not what it was")
    return packed


def drive_zstd(stage: Stage) -> str:
    """A long window and the high level with two threads, up and down."""
    path = text(stage, 250_000)
    before = sha256(path)
    stage.run(["zstd", "-q", "-13", "--long=27", "-T2", path], name="compress")
    packed = sha256(Path(f"{path}.zst"))
    back = stage.folder / "back"
    stage.run(["zstd", "-q", "-d", "--long=27", f"{path}.zst", "-o", back], name="decompress")
    if sha256(back) != before:
        raise Wrong("the file is not what it was")
    return packed


def drive_sort(stage: Stage) -> str:
    """GNU sort in memory, with threads; a second run checks the order."""
    path = text(stage, 1_200_000)
    out = stage.folder / "sorted"
    stage.run(["sort", "-S", "512M", "--parallel=2", "-k", "2", path, "-o", out], name="sort")
    stage.plain(["sort", "-c", "-k", "2", out])
    return sha256(out)


def drive_git(stage: Stage) -> str:
    """A history of large and similar files, repacked and checked."""
    work = stage.folder / "work"
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
        "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    stage.plain(["git", "init", "-q", work], env=identity)
    base = log_lines(150_000)
    for version in range(8):
        for n in range(12):
            at = (n * 104_729 + version * 7919) % 1_000_000
            (work / f"file{n}").write_bytes(base[at : at + 2_000_000] + b"%d %d\n" % (n, version))
        stage.plain(["git", "-C", work, "add", "-A"], env=identity)
        stage.plain(["git", "-C", work, "commit", "-q", "-m", f"{version}"], env=identity)
    repack: list[str | Path] = ["git", "-C", work]
    repack += ["-c", "pack.threads=2", "repack", "-a", "-d", "-f", "-q"]
    stage.run([*repack, "--window=20", "--depth=20"], name="repack", env=identity)
    said = stage.run(["git", "-C", work, "fsck", "--full", "--strict"], name="fsck", env=identity)
    if "error" in said or "missing" in said or "corrupt" in said:
        raise Wrong(said)
    stage.plain(["git", "-C", work, "fsck", "--full"], env=identity)
    return stage.plain(["git", "-C", work, "rev-parse", "HEAD^{tree}"], env=identity).strip()


def drive_ffmpeg(stage: Stage) -> str:
    """A synthetic film through a lossless encoder and back, by the digest of its frames."""
    film = stage.folder / "film.mkv"
    source = ["-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25:duration=6"]
    head = ["ffmpeg", "-v", "error", "-nostdin", "-bitexact"]
    codec = ["-c:v", "libx264", "-preset", "medium", "-qp", "0", "-threads", "2"]
    stage.run([*head, *source, *codec, film], name="encode")
    said = stage.run([*head, "-i", film, "-f", "framemd5", "-"], name="decode")
    plain = stage.plain([*head, *source, "-pix_fmt", "yuv420p", "-f", "framemd5", "-"])
    frames = [line.split(",")[-1].strip() for line in said.splitlines() if line[:1].isdigit()]
    wanted = [line.split(",")[-1].strip() for line in plain.splitlines() if line[:1].isdigit()]
    if len(frames) != 150 or frames != wanted:
        raise Wrong(f"{len(frames)} frames of {len(wanted)}, or not the same: {said[:500]}")
    return hashlib.sha256(said.encode()).hexdigest()


ALL = (
    Program(
        *("xz", version_of("xz", "--version"), drive_xz),
        "compress with a dictionary of 32 MiB and decompress: SHA-256 of what went in; "
        "the archive is as untiered",
        ("xz:xz-utils",),
    ),
    Program(
        *("zstd", version_of("zstd", "--version"), drive_zstd),
        "compress at -13 --long=27 -T2 and decompress: SHA-256 of what went in; the archive is as "
        "untiered",
        ("zstd:zstd",),
    ),
    Program(
        *("sort", version_of("sort", "--version"), drive_sort),
        "1,200,000 lines in memory with two threads: order checked, SHA-256 as untiered",
        ("sort:coreutils",),
    ),
    Program(
        *("git", version_of("git", "--version"), drive_git),
        "repack -a -f and fsck --full of 96 versions of files of 2 MB, fsck again without Terrace",
        ("git:git",),
    ),
    Program(
        *("ffmpeg", version_of("ffmpeg", "-version"), drive_ffmpeg),
        "150 frames through lossless H.264 and back: MD5 of every frame",
        ("ffmpeg:ffmpeg",),
    ),
)
