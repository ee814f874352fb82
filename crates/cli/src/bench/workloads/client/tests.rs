//! The client against a server of a few lines that can flip a bit or forget.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
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
fn serve(stream: UnixStream, store: &Store, fault: Fault, served: &AtomicU64) {
    let mut out = stream.try_clone().unwrap();
    let (mut lines, mut line, mut gets) = (BufReader::new(stream), String::new(), 0);
    while lines.read_line(&mut line).unwrap_or(0) > 0 {
        served.fetch_add(1, Ordering::Relaxed);
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

/// Returns how many requests have come, counted as it goes.
fn start(path: &Path, fault: Fault) -> Arc<AtomicU64> {
    let listener = UnixListener::bind(path).unwrap();
    let (store, served) = (Store::default(), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&served);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (store, served) = (Arc::clone(&store), Arc::clone(&served));
            std::thread::spawn(move || serve(stream, &store, fault, &served));
        }
    });
    count
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
fn two_servers_take_turns_and_each_has_its_own_figures() {
    let folder = TempDir::new("client-test").unwrap();
    let paths = ["own", "beside"].map(|name| folder.path().join(name));
    let served = paths.each_ref().map(|path| start(path, Fault::None));
    let mut halted = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let pid = halted.id().to_string();
    let [own, beside] = paths.each_ref().map(|path| path.to_str().unwrap());
    let words = ["work", "memcached", "--size", "16", "--seconds", "2.2", "--warmup", "0.3"];
    let more = ["--connect", own, "--beside", beside, "--halt", &pid];
    let args = Line::parse_from(words.into_iter().chain(more)).work;
    let (mut recorder, lines) = recorder(args.seconds);
    run(Kind::Memcached, &args, &mut recorder).unwrap();
    assert_eq!(recorder.finish().unwrap(), 0);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    halted.kill().unwrap();
    halted.wait().unwrap();
    assert!(stat.contains(") S "), "it goes on afterwards: {stat}");
    let lines = lines.parsed();
    let done = lines.last().unwrap();
    let of = |line: &serde_json::Value, name: &str| line[name].as_f64().unwrap();
    let plain = &done["beside"];
    assert!(of(done, "ops") > 100.0 && of(plain, "ops") > 100.0, "{done}");
    // Turns of 250 and 120 ms with 20 ms at the start of each: nothing counts twice.
    let (own_s, plain_s) = (of(done, "seconds"), of(plain, "seconds"));
    assert!(own_s > 0.6 && plain_s > 0.3 && own_s + plain_s < 2.2 + 0.3, "{own_s} {plain_s}");
    assert!(own_s > plain_s, "each has the other's time: {own_s} {plain_s}");
    for (figures, served) in [done, plain].into_iter().zip(&served) {
        let rate = of(figures, "ops") / of(figures, "seconds");
        assert!((of(figures, "ops_per_s") / rate - 1.0).abs() < 1e-6);
        let served = served.load(Ordering::Relaxed) as f64;
        assert!(of(figures, "ops") < served, "what the other did, or loading: {served} of {done}");
    }
    let seconds = || lines.iter().filter(|l| l["t_s"].is_number());
    // What the plain one did is in the lines as well, but for what came after the last of them.
    let sum = |name: &str| seconds().filter_map(|l| l[name].as_f64()).sum::<f64>();
    let (work, time) = (sum("beside_work"), sum("beside_s"));
    assert!(work > 0.0 && work <= of(plain, "ops"), "{work} of {plain}");
    assert!(time > 0.1 && time <= plain_s + 1e-6, "{time} of {plain_s}");
    let seconds: f64 = seconds().map(|l| of(l, "work_s")).sum();
    assert!(seconds <= own_s + 1e-6, "turns of the other are in the lines: {seconds} of {own_s}");
}

#[test]
fn ratios_are_read_as_memtier_does() {
    assert_eq!(parse_ratio("1:10"), Ok(1.0 / 11.0));
    assert_eq!(parse_ratio("0:1"), Ok(0.0));
    assert!(["", "1", "0:0", "a:b", "-1:2"].iter().all(|text| parse_ratio(text).is_err()));
}
