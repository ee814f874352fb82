//! Links the unwinder that Rust's standard library refers to from the compiler's static archive:
//! `libterrace.so` shall need nothing but libc in the processes that it is loaded into.
//!
//! rustc asks for `-lgcc_s`. A linker script of that name, in a folder that is searched first,
//! stands for the archive. Where the compiler has no such archive the library is linked as usual.
//!
//! `abort` is ours in that library, and not seen from outside: libc's runs the program's handler of
//! SIGABRT, on whatever thread (`sys/proc.rs`, `end`).

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym=abort=terrace_abort");
    let (Some(archive), Some(out)) = (archive(), std::env::var_os("OUT_DIR")) else { return };
    let folder = Path::new(&out).join("unwinder");
    let script = format!("INPUT(\"{}\" AS_NEEDED(-lc))\n", archive.display());
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("libgcc_s.so"), script));
    match written {
        Ok(()) => println!("cargo::rustc-link-search=native={}", folder.display()),
        Err(e) => println!("cargo::warning=libterrace.so will need libgcc_s.so.1: {e}"),
    }
}

/// The compiler's `libgcc_eh.a`, if it has one. (It prints the bare name of a file that it has
/// not.)
fn archive() -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let said = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output().ok()?;
    let path = PathBuf::from(String::from_utf8(said.stdout).ok()?.trim());
    let path = path.canonicalize().ok().filter(|_| path.is_absolute())?;
    path.is_file().then_some(path)
}
