//! Programs of every kind, written byte by byte: no compiler is needed to test a refusal.

use super::*;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("terrace-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn check(&self, name: &str) -> Result<Program, Refusal> {
        check_in(name, self.0.as_os_str())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A minimal ELF header, and one PT_INTERP when there is a loader.
fn elf(class: u8, machine: u16, loader: Option<&str>) -> Vec<u8> {
    let mut bytes = vec![0u8; 64 + 56];
    bytes[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1, 0]);
    bytes[16..18].copy_from_slice(&3u16.to_le_bytes());
    bytes[18..20].copy_from_slice(&machine.to_le_bytes());
    bytes[32..40].copy_from_slice(&64u64.to_le_bytes());
    bytes[54..56].copy_from_slice(&56u16.to_le_bytes());
    bytes[56..58].copy_from_slice(&1u16.to_le_bytes());
    // PT_LOAD unless a loader is named.
    bytes[64..68].copy_from_slice(&(if loader.is_some() { 3u32 } else { 1 }).to_le_bytes());
    if let Some(loader) = loader {
        bytes[72..80].copy_from_slice(&120u64.to_le_bytes());
        bytes[96..104].copy_from_slice(&(loader.len() as u64 + 1).to_le_bytes());
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
    }
    bytes
}

#[test]
fn a_shell_is_accepted_and_found_in_path() {
    let program = check("sh").expect("every test machine has a dynamically linked sh");
    assert!(program.path.ends_with("sh") && program.path.is_absolute());
    assert!(program.loader.exists());
}

#[test]
fn what_cannot_be_preloaded_is_refused_with_the_reason() {
    let dir = Dir::new("refusals");
    let here = MACHINE.0;
    dir.file("static", &elf(2, here, None), 0o755);
    dir.file("musl", &elf(2, here, Some("/lib/ld-musl-x86_64.so.1")), 0o755);
    dir.file("bits32", &elf(1, 3, None), 0o755);
    dir.file("sparc", &elf(2, 43, None), 0o755);
    dir.file("short", b"\x7fELF\x02\x01", 0o755);
    dir.file("foreign", &elf(2, here, Some("/nowhere/ld-linux-x86-64.so.2")), 0o755);
    dir.file("data", b"hello", 0o755);
    dir.file("plain", &elf(2, here, None), 0o644);
    std::fs::create_dir(dir.0.join("dir")).unwrap();
    let direct = format!("{}/dir", dir.0.display());
    for (name, says) in [
        ("static", "is statically linked: the runtime cannot be preloaded"),
        ("musl", "which is not glibc's loader"),
        ("bits32", "is a 32-bit program"),
        ("sparc", "is for another processor (ELF machine 43)"),
        ("short", "the ELF header is cut short"),
        ("foreign", "needs the loader /nowhere/ld-linux-x86-64.so.2, which does not exist"),
        ("data", "is neither an ELF program nor a script"),
        ("plain", "cannot be executed: no execute permission"),
        ("absent", "absent: not found; install it"),
        ("", ": not found"),
        ("/nowhere/x", "/nowhere/x: not found"),
        (direct.as_str(), "not a regular file"),
    ] {
        let refusal = dir.check(name).expect_err(name).to_string();
        assert!(refusal.contains(says), "{name}: {refusal}");
        assert!(!refusal.contains('\n') && refusal.contains(';'), "one line with a remedy");
    }
}

#[test]
fn damaged_headers_are_refused_and_never_panic() {
    let dir = Dir::new("damaged");
    let good = elf(2, MACHINE.0, Some("/lib64/ld-linux-x86-64.so.2"));
    for at in 4..good.len() {
        for value in [0u8, 0x7f, 0xff] {
            let mut bytes = good.clone();
            bytes[at] = value;
            dir.file("p", &bytes, 0o755);
            let _ = dir.check("p");
        }
    }
    for length in 0..good.len() {
        dir.file("p", &good[..length], 0o755);
        assert!(dir.check("p").is_err(), "cut to {length} bytes");
    }
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let dir = Dir::new("scripts");
    let elf = elf(2, MACHINE.0, None);
    let interpreter = dir.file("static", &elf, 0o755);
    dir.file("good", b"#!/bin/sh\necho\n", 0o755);
    assert!(dir.check("good").unwrap().path.ends_with("good"));
    dir.file("bad", format!("#! {} -x\n", interpreter.display()).as_bytes(), 0o755);
    let refusal = dir.check("bad").unwrap_err().to_string();
    assert!(refusal.contains("bad is a script: ") && refusal.contains("statically"), "{refusal}");
    dir.file("env", b"#!/usr/bin/env -S A=1 static -x\n", 0o755);
    assert!(dir.check("env").unwrap_err().to_string().contains("statically"));
    dir.file("gone", b"#!/nowhere/sh\n", 0o755);
    assert!(dir.check("gone").unwrap_err().to_string().contains("/nowhere/sh: not found"));
    let own = dir.0.join("loop");
    dir.file("loop", format!("#!{}\n", own.display()).as_bytes(), 0o755);
    assert!(dir.check("loop").unwrap_err().to_string().contains("deeper than the kernel"));
}

#[test]
fn setuid_programs_of_other_users_are_refused() {
    let dir = Dir::new("setuid");
    let loader = check("sh").unwrap().loader;
    let bytes = elf(2, MACHINE.0, loader.to_str());
    let path = dir.file("mine", &bytes, 0o4755);
    assert!(dir.check("mine").is_ok(), "setuid to oneself changes nothing");
    // Only root can give a file away; elsewhere the kernel's answer is the end of this test.
    if std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).is_ok() {
        for (mode, what) in [(0o4755, "setuid"), (0o2755, "setgid")] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refusal = dir.check("mine").unwrap_err();
            assert_eq!(refusal, Refusal::Privileged { path: path.clone(), what });
        }
    }
}
