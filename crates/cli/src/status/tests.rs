//! Sessions played by a thread each, on sockets in a temporary directory.

use super::*;
use std::os::unix::net::UnixListener;
use std::thread;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("terrace-st-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Dir(private_dir(&path).unwrap())
    }

    /// A session that reads one line and answers with `answer`, or not at all.
    fn session(&self, pid: u32, answer: Option<String>) -> thread::JoinHandle<String> {
        let listener = UnixListener::bind(self.0.join(format!("{pid}.sock"))).unwrap();
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            match answer {
                Some(answer) => writeln!(&stream, "{answer}").unwrap(),
                // Held open until the client gives up.
                None => drop((&stream).read(&mut [0u8; 1])),
            }
            question
        })
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn answer(supervisor_pid: u32) -> String {
    let dram = r#"{"name":"DRAM","pages":262144,"usd_per_gib_month":0.3,"emulated":false}"#;
    let slow = r#"{"name":"zsmalloc+lz4+slow","pages":131072,"stored_bytes":104857600,
        "pool_bytes":209715200,"faults_total":42,"fault_ns_p50":4200,"fault_ns_p99":9000,
        "emulated":true}"#;
    format!(
        r#"{{"supervisor_pid":{supervisor_pid},"applications":[{{"pid":77,"command":"redis-server",
        "started_s":130.5,"last":{{"window":9,"policy":"analytical","preset":"tierscape",
        "alpha":0.1,"tracker":{{"method":"userfaultfd sampling","why_not_better":"no PMU"}},
        "tiers":[{dram},{slow}],"managed_bytes":2147483648,"tco_saved":0.412,
        "usd_per_month":0.6,"usd_saved_per_month":0.4,
        "stalled_ms":12.5,"terrace_cpu_ms":80,
        "plan":{{"moves":12,"why":"budget 10 %","solve_ms":1}}}},"totals":{{"faults":42}}}}]}}"#
    )
    .replace('\n', " ")
}

#[test]
fn a_session_is_asked_and_shown() {
    let dir = Dir::new("one");
    let session = dir.session(4242, Some(answer(4242)));
    let found = query_in(std::slice::from_ref(&dir.0)).unwrap();
    assert_eq!(session.join().unwrap(), "{\"ask\":\"status\"}\n");
    assert_eq!(found.sessions[0].applications[0].totals["faults"], 42);
    let text = table::render(&found);
    for says in [
        "redis-server (pid 77, session 4242, for 2 min)",
        "1.0 GiB",
        "100.0 MiB   200.0 MiB          42",
        "4.2 us",
        "emulated",
        "41.2 % of TCO, 0.42 USD of 1.02 USD a month (as if emulated media were real; without \
         them 0.40 USD)",
        "12.5 ms stalled and 80 ms CPU in window 9; 42 faults",
        "analytical, tiers tierscape, --alpha 0.1",
        "not followed        512.0 MiB\n",
        "12 moves: budget 10 %",
        "userfaultfd sampling; why not better: no PMU",
    ] {
        assert!(text.contains(says), "{says:?} not in\n{text}");
    }
}

#[test]
fn a_session_before_its_first_window_is_shown() {
    let found = Found {
        sessions: vec![SessionStatus {
            supervisor_pid: 1,
            applications: vec![ApplicationStatus {
                pid: 2,
                command: "cmd".into(),
                started_s: 3.0,
                has_ended: false,
                last: serde_json::Value::Null,
                totals: serde_json::Value::Null,
            }],
            processes: vec![2],
            ended_before: EndedBefore::default(),
        }],
        ..Found::default()
    };
    assert!(table::render(&found).contains("first window not finished"));
}

fn session(supervisor_pid: u32, processes: &[u32]) -> SessionStatus {
    SessionStatus {
        supervisor_pid,
        applications: Vec::new(),
        processes: processes.to_vec(),
        ended_before: EndedBefore::default(),
    }
}

#[test]
fn a_process_that_has_connected_only_is_found_by_its_id() {
    let sessions = vec![session(1, &[11, 12]), session(2, &[21])];
    let found = Found { sessions, ..Found::default() };
    let of_one = found.clone().only(12);
    assert_eq!(of_one.sessions, [session(1, &[12])]);
    assert_eq!(table::render(&of_one), "process 12 (session 1): its first window has not ended\n");
    assert_eq!(found.clone().only(2).sessions, [session(2, &[21])]);
    assert_eq!(found.only(13), Found::default());
}

#[test]
fn what_has_ended_is_shown_as_such_and_the_rest_summed_up() {
    let mut session: SessionStatus = serde_json::from_str(&answer(4242)).unwrap();
    session.applications[0].has_ended = true;
    for _ in 0..3 {
        let totals = serde_json::json!({"faults": 5, "stalled_ms": 1.5, "odd": null});
        session.ended_before.add(&totals);
    }
    let text = table::render(&Found { sessions: vec![session], ..Found::default() });
    assert!(text.contains("redis-server (pid 77, session 4242, ended after 2 min)"), "{text}");
    assert!(text.contains("3 more have ended; 15 faults served, 4.5 ms stalled"), "{text}");
}

#[test]
fn money_is_one_pair_with_and_without_emulated_media() {
    // As a run with 96.8 % on an emulated medium says it: what was saved in real money is less
    // than nothing, since the runtime costs a little.
    let mut session: SessionStatus = serde_json::from_str(&answer(1)).unwrap();
    let mut shown = |emulated: bool| {
        let last = &mut session.applications[0].last;
        last["tiers"][1]["emulated"] = emulated.into();
        last["tco_saved"] = 0.968.into();
        last["usd_per_month"] = 0.64.into();
        last["usd_saved_per_month"] = if emulated { (-0.18).into() } else { 19.36.into() };
        table::render(&Found { sessions: vec![session.clone()], ..Found::default() })
    };
    let text = shown(true);
    let says = "96.8 % of TCO, 19.36 USD of 20.00 USD a month (as if emulated media were real; \
                without them -0.18 USD)";
    assert!(text.contains(says), "{text}");
    let text = shown(false);
    assert!(text.contains("96.8 % of TCO, 19.36 USD of 20.00 USD a month\n"), "{text}");
}

#[test]
fn a_runtime_without_a_planner_is_named_and_what_a_dead_one_left_is_removed() {
    let dir = Dir::new("unplanned");
    let _alive = UnixListener::bind(dir.0.join("77.runtime")).unwrap();
    drop(UnixListener::bind(dir.0.join("78.runtime")).unwrap());
    let found = query_in(std::slice::from_ref(&dir.0)).unwrap();
    assert_eq!(found.unplanned, [77]);
    assert!(!dir.0.join("78.runtime").exists());
    assert!(table::render(&found).contains("terrace attach 77"));
}

#[test]
fn no_sessions_is_one_line() {
    let dir = Dir::new("none");
    let text = table::render(&query_in(std::slice::from_ref(&dir.0)).unwrap());
    assert_eq!(text, "no sessions; start one with: terrace run -- CMD\n");
}

#[test]
fn the_socket_of_a_dead_session_is_removed() {
    let dir = Dir::new("stale");
    let socket = dir.0.join("9.sock");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    assert_eq!(query_in(std::slice::from_ref(&dir.0)).unwrap(), Found::default());
    assert!(!socket.exists());
}

#[test]
fn a_session_that_hangs_or_babbles_is_named_and_does_not_hide_the_others() {
    let dir = Dir::new("hang");
    let sessions = [
        dir.session(1, None),
        dir.session(2, Some("hello".into())),
        dir.session(3, Some(answer(3))),
    ];
    let found = query_in(std::slice::from_ref(&dir.0)).unwrap();
    assert_eq!(found.sessions.len(), 1);
    assert!(found.silent[0].why.contains("no answer within a second"), "{:?}", found.silent);
    assert!(found.silent[1].why.contains("not an answer of terrace"), "{:?}", found.silent);
    assert!(dir.0.join("1.sock").exists(), "it listens, so it is not stale");
    for session in sessions {
        session.join().unwrap();
    }
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    let dir = Dir::new("mode");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o755)).unwrap();
    let error = private_dir(&dir.0).unwrap_err().to_string();
    assert!(error.contains("is open to others (mode 755, not 700)"), "{error}");
    fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
    let link = dir.0.join("link");
    std::os::unix::fs::symlink(&dir.0, &link).unwrap();
    assert!(private_dir(&link).unwrap_err().to_string().contains("is not a directory"));
    if std::os::unix::fs::chown(&dir.0, Some(12_345), None).is_ok() {
        let error = private_dir(&dir.0).unwrap_err().to_string();
        assert!(error.contains("belongs to user 12345"), "{error}");
    }
}

#[test]
fn the_socket_is_named_after_the_supervisor() {
    let path = session_socket_path(31).unwrap();
    let (uid, _) = effective_ids();
    assert!(path.ends_with(format!("terrace-{uid}/31.sock")), "{}", path.display());
}

#[test]
fn a_link_without_its_socket_goes_if_nobody_listens() {
    let dir = Dir::new("link");
    let link = |pid: u32| dir.0.join(format!("{pid}.link"));
    drop(UnixListener::bind(link(31)).unwrap());
    let _beginning = UnixListener::bind(link(32)).unwrap();
    assert_eq!(query_in(std::slice::from_ref(&dir.0)).unwrap(), Found::default());
    assert!(!link(31).exists() && link(32).exists());
}
