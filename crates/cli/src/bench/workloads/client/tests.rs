//! The client against a server of a few lines that can flip a bit or forget.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use clap::Parser;

use super::super::record::tests::recorder;
use super::*;
use crate::demo::redis::TempDir;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    work: WorkArgs,
}

type Store = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// What the server does wrong, on some GET.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    Flip,
    Forget,
}

/// Memcached's protocol, as far as the client speaks it.
fn serve(stream: UnixStream, store: &Store, fault: Fault) {
    let mut out = stream.try_clone().unwrap();
    let (mut lines, mut line, mut gets) = (BufReader::new(stream), String::new(), 0);
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        let key = words[1].to_owned();
        if words[0] == "set" {
            let mut value = vec![0; words[4].parse::<usize>().unwrap() + 2];
            lines.read_exact(&mut value).unwrap();
            value.truncate(value.len() - 2);
            store.lock().unwrap().insert(key, value);
            out.write_all(b"STORED\r\n").unwrap();
        } else {
            gets += 1;
            let mut value = store.lock().unwrap()[&key].clone();
            if gets == 100 && fault == Fault::Forget {
                out.write_all(b"END\r\n").unwrap();
                line.clear();
                continue;
            }
            if gets == 100 && fault == Fault::Flip {
                value[2000] ^= 4;
            }
            let mut reply = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
            reply.extend_from_slice(&value);
            reply.extend_from_slice(b"\r\nEND\r\n");
            // The client may have gone.
            let _ = out.write_all(&reply);
        }
        line.clear();
    }
}

fn start(path: &Path, fault: Fault) {
    let listener = UnixListener::bind(path).unwrap();
    let store = Store::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let store = Arc::clone(&store);
            std::thread::spawn(move || serve(stream, &store, fault));
        }
    });
}

fn wrong_with(fault: Fault, more: &[&str]) -> u64 {
    let folder = TempDir::new("client-test").unwrap();
    let path = folder.path().join("s");
    start(&path, fault);
    let to = path.to_str().unwrap();
    let words = ["work", "memcached", "--size", "16", "--seconds", "0.3", "--warmup", "0"];
    let words = words.iter().copied().chain(["--connect", to]).chain(more.iter().copied());
    let args = Line::parse_from(words).work;
    let (mut recorder, lines) = recorder(args.seconds);
    run(Kind::Memcached, &args, &mut recorder).unwrap();
    let wrong = recorder.finish().unwrap();
    let lines = lines.parsed();
    assert_eq!(lines[0]["event"], "ready");
    let done = lines.last().unwrap();
    assert!(done["ops"].as_u64().unwrap() > 100, "{done}");
    assert_eq!(done["wrong"], wrong);
    wrong
}

#[test]
fn an_honest_server_is_never_wrong() {
    assert_eq!(wrong_with(Fault::None, &["--ratio", "1:1", "--read-back"]), 0);
    assert_eq!(wrong_with(Fault::None, &["--popularity", "zipf", "--drift", "1"]), 0);
}

#[test]
fn one_flipped_bit_is_wrong() {
    assert!(wrong_with(Fault::Flip, &[]) > 0);
    // Damaged by ourselves, and read back at the end.
    assert!(wrong_with(Fault::None, &["--corrupt", "--ratio", "0:1"]) > 0);
}

#[test]
fn a_forgotten_value_is_wrong() {
    assert!(wrong_with(Fault::Forget, &[]) > 0);
}

#[test]
fn ratios_are_read_as_memtier_does() {
    assert_eq!(parse_ratio("1:10"), Ok(1.0 / 11.0));
    assert_eq!(parse_ratio("0:1"), Ok(0.0));
    assert!(["", "1", "0:0", "a:b", "-1:2"].iter().all(|text| parse_ratio(text).is_err()));
}
