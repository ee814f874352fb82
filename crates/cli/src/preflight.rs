//! Can this program run under Terrace? Answered before anything is started.
//!
//! The runtime gets into a program through `LD_PRELOAD`, which glibc's loader honours for 64-bit
//! dynamically linked programs that run with the privileges of their caller. Everything else is
//! ignored by the loader *silently*: a program that cannot be preloaded would run untiered and
//! nobody would know. So each such case is a [`Refusal`] that says why and what to do instead.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub mod uffd_probe;

pub use uffd_probe::{userfaultfd_access, UffdAccess};

/// Scripts run scripts run scripts: the kernel stops after five, and so does this.
const SCRIPT_DEPTH_MAX: usize = 5;

/// The kernel reads this much of a file to find `#!` (BINPRM_BUF_SIZE).
const SCRIPT_LINE_MAX_BYTES: usize = 256;

/// More program headers than any real program has; bounds what a damaged file can ask for.
const PROGRAM_HEADERS_MAX: u16 = 256;

/// `e_machine` of this build, and what to call it.
#[cfg(target_arch = "x86_64")]
const MACHINE: (u16, &str) = (62, "x86-64");
#[cfg(target_arch = "aarch64")]
const MACHINE: (u16, &str) = (183, "AArch64");

/// A program that the runtime can be preloaded into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// What to execute: the command with `PATH` resolved. A script stays a script.
    pub path: PathBuf,
    /// The dynamically linked ELF file that will run it; differs from `path` for scripts.
    pub elf: PathBuf,
    /// Its loader, from PT_INTERP.
    pub loader: PathBuf,
}

/// Why a program is not started: one line that says what is wrong and how to mend it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No such command.
    NotFound {
        /// The command as given.
        command: String,
    },
    /// It exists but may not be executed or read.
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// What the kernel says about it.
        why: String,
    },
    /// No PT_INTERP: no loader that could preload anything.
    Static {
        /// The file.
        path: PathBuf,
    },
    /// Runs with other privileges than its caller; the loader then ignores `LD_PRELOAD`.
    Privileged {
        /// The file.
        path: PathBuf,
        /// `setuid`, `setgid` or `file capabilities`.
        what: &'static str,
    },
    /// Neither ELF nor a script with `#!`.
    NotAProgram {
        /// The file.
        path: PathBuf,
    },
    /// A damaged ELF file, or one that is no program.
    BadElf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// 32-bit, or for another processor.
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// What it was built for.
        what: String,
    },
    /// A loader that is not glibc's.
    OtherLibc {
        /// The file.
        path: PathBuf,
        /// Its loader.
        loader: PathBuf,
    },
    /// The loader does not exist here.
    NoLoader {
        /// The file.
        path: PathBuf,
        /// The loader it names.
        loader: PathBuf,
    },
    /// The interpreter of a script is refused.
    Interpreter {
        /// The script.
        script: PathBuf,
        /// Why its interpreter cannot be used.
        refusal: Box<Refusal>,
    },
    /// Scripts nested deeper than the kernel allows.
    TooDeep {
        /// The last script looked at.
        path: PathBuf,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotFound { command } => {
                write!(f, "{command}: not found; install it, or give its path")
            }
            Refusal::NotExecutable { path, why } => {
                let path = path.display();
                write!(f, "{path} cannot be executed: {why}; check its permissions")
            }
            Refusal::Static { path } => write!(
                f,
                "{} is statically linked: the runtime cannot be preloaded; use a dynamically \
                 linked build (for Go: CGO_ENABLED=1 and -ldflags=-linkmode=external)",
                path.display()
            ),
            Refusal::Privileged { path, what } => write!(
                f,
                "{} has {what}: the loader ignores the runtime for privileged programs; run it as \
                 the user it changes to, or a copy without {what}",
                path.display()
            ),
            Refusal::NotAProgram { path } => write!(
                f,
                "{} is neither an ELF program nor a script that starts with #!; run its \
                 interpreter, such as: terrace run -- sh {}",
                path.display(),
                path.display()
            ),
            Refusal::BadElf { path, why } => {
                write!(f, "{} is not a program: {why}; name an executable", path.display())
            }
            Refusal::OtherMachine { path, what } => write!(
                f,
                "{} is {what}, the runtime is 64-bit {}; use a build for it",
                path.display(),
                MACHINE.1
            ),
            Refusal::OtherLibc { path, loader } => write!(
                f,
                "{} is loaded by {}, which is not glibc's loader (musl?): the runtime cannot be \
                 preloaded; use a glibc build",
                path.display(),
                loader.display()
            ),
            Refusal::NoLoader { path, loader } => write!(
                f,
                "{} needs the loader {}, which does not exist; install the C library it was \
                 built for",
                path.display(),
                loader.display()
            ),
            Refusal::Interpreter { script, refusal } => {
                write!(f, "{} is a script: {refusal}", script.display())
            }
            Refusal::TooDeep { path } => write!(
                f,
                "{} is a script of a script of a script, deeper than the kernel follows; run its \
                 interpreter directly",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Looks `command` up in `$PATH` and checks that the runtime can be preloaded into it.
pub fn check(command: impl AsRef<OsStr>) -> Result<Program, Refusal> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    check_in(command, &search)
}

/// [`check`] with the search path handed in.
pub fn check_in(command: impl AsRef<OsStr>, search: &OsStr) -> Result<Program, Refusal> {
    let path = resolve(command.as_ref(), search)?;
    let (elf, loader) = inspect(&path, search, 0)?;
    Ok(Program { path, elf, loader })
}

/// The file that `execvp` would run.
fn resolve(command: &OsStr, search: &OsStr) -> Result<PathBuf, Refusal> {
    let not_found = || Refusal::NotFound { command: command.display().to_string() };
    if command.is_empty() {
        return Err(not_found());
    }
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match path.metadata() {
            Ok(_) => Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(not_found()),
            Err(e) => Err(Refusal::NotExecutable { path, why: e.to_string() }),
        };
    }
    let candidates = std::env::split_paths(search).map(|dir| dir.join(command));
    let mut seen = None;
    for path in candidates {
        match path.metadata() {
            Ok(m) if m.is_file() && m.permissions().mode() & 0o111 != 0 => return Ok(path),
            Ok(m) if m.is_file() => seen = seen.or(Some(path)),
            _ => {}
        }
    }
    match seen {
        Some(path) => Err(Refusal::NotExecutable { path, why: "no execute permission".into() }),
        None => Err(not_found()),
    }
}

/// Follows scripts to the ELF file behind them: that file and its loader.
fn inspect(path: &Path, search: &OsStr, depth: usize) -> Result<(PathBuf, PathBuf), Refusal> {
    if depth > SCRIPT_DEPTH_MAX {
        return Err(Refusal::TooDeep { path: path.into() });
    }
    let refuse = |why: String| Refusal::NotExecutable { path: path.into(), why };
    let meta = path.metadata().map_err(|e| refuse(e.to_string()))?;
    if !meta.is_file() {
        return Err(refuse("not a regular file".into()));
    }
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(refuse("no execute permission".into()));
    }
    // A file may be executable and not readable; then nothing can be said about it.
    let file = File::open(path).map_err(|e| refuse(format!("cannot be read to check it: {e}")))?;
    let mut head = Vec::with_capacity(SCRIPT_LINE_MAX_BYTES);
    (&file)
        .take(SCRIPT_LINE_MAX_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(|e| refuse(e.to_string()))?;

    if head.starts_with(b"#!") {
        // setuid bits of scripts mean nothing to the kernel, only those of the interpreter.
        return inspect_script(path, &head, search, depth);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(Refusal::NotAProgram { path: path.into() });
    }
    // What the file is comes before what it may do: a static setuid program is first of all static.
    let loader = elf_loader(path, &file)?;
    refuse_privileged(path, &meta)?;
    Ok((path.into(), loader))
}

fn inspect_script(
    script: &Path,
    head: &[u8],
    search: &OsStr,
    depth: usize,
) -> Result<(PathBuf, PathBuf), Refusal> {
    let line = head[2..].split(|b| *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let interpreter = match words.next() {
        Some(word) => PathBuf::from(word),
        None => return Err(Refusal::NotAProgram { path: script.into() }),
    };
    let wrap = |refusal| Refusal::Interpreter { script: script.into(), refusal: Box::new(refusal) };
    if !interpreter.exists() {
        let command = interpreter.display().to_string();
        return Err(wrap(Refusal::NotFound { command }));
    }
    // `#!/usr/bin/env python3`: the program is what env will look up.
    let behind_env = (interpreter.file_name().is_some_and(|n| n == "env"))
        .then(|| words.find(|w| !w.starts_with('-') && !w.contains('=')))
        .flatten();
    match behind_env {
        Some(command) => {
            resolve(OsStr::new(command), search).and_then(|p| inspect(&p, search, depth + 1))
        }
        None => inspect(&interpreter, search, depth + 1),
    }
    .map_err(wrap)
}

/// Refuses what the kernel would start in "secure execution": the loader then drops LD_PRELOAD.
fn refuse_privileged(path: &Path, meta: &std::fs::Metadata) -> Result<(), Refusal> {
    let refuse = |what| Err(Refusal::Privileged { path: path.into(), what });
    let mode = meta.permissions().mode();
    let (uid, gid) = uffd_probe::effective_ids();
    if mode & 0o4000 != 0 && meta.uid() != uid {
        return refuse("setuid");
    }
    // Without group execute the bit means mandatory locking, not setgid.
    if mode & 0o2010 == 0o2010 && meta.gid() != gid {
        return refuse("setgid");
    }
    // File capabilities give root nothing that it does not have.
    if uid != 0 && uffd_probe::has_file_capabilities(path) {
        return refuse("file capabilities");
    }
    Ok(())
}

/// The loader that an ELF program names, if it is a program for this machine and C library.
fn elf_loader(path: &Path, file: &File) -> Result<PathBuf, Refusal> {
    let bad = |why: &str| Refusal::BadElf { path: path.into(), why: why.into() };
    let mut header = [0u8; 64];
    let got = file.read_at(&mut header, 0).map_err(|e| bad(&e.to_string()))?;
    if got < 20 {
        return Err(bad("the ELF header is cut short"));
    }
    let other = |what: String| Err(Refusal::OtherMachine { path: path.into(), what });
    // EI_CLASS, EI_DATA
    if header[4] != 2 {
        return other("a 32-bit program".into());
    }
    if header[5] != 1 {
        return other("a big-endian program".into());
    }
    let machine = u16_at(&header, 18);
    if machine != MACHINE.0 {
        return other(format!("for another processor (ELF machine {machine})"));
    }
    if got < header.len() {
        return Err(bad("the ELF header is cut short"));
    }
    // e_type: ET_EXEC, or ET_DYN (position independent).
    if !matches!(u16_at(&header, 16), 2 | 3) {
        return Err(bad("an ELF object that cannot be executed"));
    }
    let (phoff, phentsize, phnum) =
        (u64_at(&header, 32), u64::from(u16_at(&header, 54)), u16_at(&header, 56));
    if phentsize < 56 || phnum > PROGRAM_HEADERS_MAX {
        return Err(bad("its program headers make no sense"));
    }
    for n in 0..u64::from(phnum) {
        let mut entry = [0u8; 56];
        let at = n.checked_mul(phentsize).and_then(|o| o.checked_add(phoff));
        let at = at.ok_or_else(|| bad("its program headers make no sense"))?;
        file.read_exact_at(&mut entry, at).map_err(|_| bad("its program headers are cut short"))?;
        // PT_INTERP
        if u32_at(&entry, 0) != 3 {
            continue;
        }
        let (offset, size) = (u64_at(&entry, 8), u64_at(&entry, 32));
        if !(2..=4_096).contains(&size) {
            return Err(bad("its loader path makes no sense"));
        }
        let mut name = vec![0u8; usize::try_from(size).expect("at most 4,096")];
        file.read_exact_at(&mut name, offset).map_err(|_| bad("its loader path is cut short"))?;
        name.truncate(name.iter().position(|b| *b == 0).unwrap_or(name.len()));
        return check_loader(path, PathBuf::from(OsStr::from_bytes(&name)));
    }
    Err(Refusal::Static { path: path.into() })
}

/// glibc's loaders are called ld-linux*.so.N (ld64.so on some machines), wherever they are.
fn check_loader(path: &Path, loader: PathBuf) -> Result<PathBuf, Refusal> {
    let name = loader.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if !(name.starts_with("ld-linux") || name.starts_with("ld64.so") || name.starts_with("ld.so")) {
        return Err(Refusal::OtherLibc { path: path.into(), loader });
    }
    if !loader.exists() {
        return Err(Refusal::NoLoader { path: path.into(), loader });
    }
    Ok(loader)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests;
