//! What is still there when the program has ended, and what never came.
//!
//! A program that makes itself a daemon ends at once for whoever started it. We end with it, and so
//! does all planning for what it left in the background. One whose processes never load the runtime
//! runs as it would without us. Neither is to be seen from the program's exit status.

use std::path::Path;
use std::time::Duration;

use super::session::Session;
use crate::status::places;

/// How long what lives may take to end with the program.
const GRACE: Duration = Duration::from_millis(100);
/// A process that was planned for has had its first window after this time and a quarter of one.
const START: Duration = Duration::from_secs(1);
/// More processes than these are only counted.
const NAMED_MAX: usize = 8;

/// What there is to say after the program has run for so long, a line each.
pub(super) fn report(session: &Session, ran: Duration) -> Vec<String> {
    let link = session.link_path();
    let mut living = processes(|pid| belongs_to(pid, link) || may_be_executing(pid));
    if !living.is_empty() {
        std::thread::sleep(GRACE);
        living.retain(|pid| belongs_to(*pid, link));
    }
    if living.is_empty() {
        let shared = session.shared();
        let first_window = Duration::from_secs_f64(shared.config.run.window_s / 4.0);
        let should_say = ran > START + first_window && !shared.is_accounted_for();
        let none = "nothing was tiered, because no process connected: the program may clear its \
                    environment, start a static or setuid program, or one under a seccomp filter \
                    of its own, or make itself a daemon; that one must be kept in the foreground";
        return should_say.then(|| none.to_owned()).into_iter().collect();
    }
    let (tiered, untiered): (Vec<u32>, Vec<u32>) =
        living.into_iter().partition(|pid| session.is_planned_for(*pid));
    let mut said = Vec::new();
    if let Some(first) = tiered.first() {
        let them = listed(&tiered);
        said.push(format!("still there without a planner: {them}; `terrace attach {first}` plans"));
    }
    if !untiered.is_empty() {
        let them = listed(&untiered);
        said.push(format!(
            "still there, and not tiered: {them}; keep a program that makes itself a daemon in \
             the foreground"
        ));
    }
    said
}

/// `process 7 (redis-server), process 9 (sleep)`
fn listed(pids: &[u32]) -> String {
    let name = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", name.trim_end())
    };
    let mut all: Vec<String> = pids.iter().take(NAMED_MAX).map(name).collect();
    if pids.len() > NAMED_MAX {
        all.push(format!("{} more", pids.len() - NAMED_MAX));
    }
    all.join(", ")
}

/// The processes for which this is so, in order.
fn processes(is_so: impl Fn(u32) -> bool) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<u32> = pids.filter(|pid| is_so(*pid)).collect();
    found.sort_unstable();
    found
}

/// Whether process `pid`, begun after this one, runs a program and has no environment: in the
/// middle of an exec there is none to read, and what goes into the background is often there when
/// whoever began it ends.
fn may_be_executing(pid: u32) -> bool {
    let is_later = || Some(began_ticks(pid)? >= began_ticks(std::process::id())?);
    places::environment(pid).is_empty()
        && std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
        && is_later() == Some(true)
}

/// When a process began, in ticks since the machine did.
fn began_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name before the other fields may contain anything.
    let after = stat.rsplit_once(')')?.1;
    after.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether process `pid` lives and has the socket at `link` in its environment. Of one that has
/// ended and was not waited for, there is none to read.
fn belongs_to(pid: u32, link: &Path) -> bool {
    has_socket(&places::environment(pid), link)
}

fn has_socket(environment: &[u8], link: &Path) -> bool {
    places::variable(environment, places::SOCKET).is_some_and(|value| value == link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_whole_socket() {
        let link = Path::new("/run/terrace-0/12.link");
        assert!(has_socket(b"A=b\0TERRACE_SOCKET=/run/terrace-0/12.link\0C=d\0", link));
        assert!(!has_socket(b"A=b\0TERRACE_SOCKET=/run/terrace-0/123.link\0", link));
        assert!(!has_socket(b"", link));
    }

    #[test]
    fn what_has_no_environment_yet_is_looked_at_again_if_it_may_be_ours() {
        let begin = |mut command: std::process::Command| command.arg("60").spawn().expect("sleeps");
        let command = || std::process::Command::new("sleep");
        let mut bare = command();
        bare.env_clear();
        let mut children = [begin(bare), begin(command())];
        // `spawn` returns in the middle of the exec: the second has its environment a little later.
        let settles = || {
            let mut tries = std::iter::repeat_with(|| std::thread::sleep(GRACE / 10)).take(500);
            tries.any(|()| !may_be_executing(children[1].id()))
        };
        let found = [may_be_executing(children[0].id()), settles()];
        let listed = processes(|pid| children.iter().any(|child| child.id() == pid));
        children.iter_mut().for_each(|child| child.kill().expect("ended"));
        children.iter_mut().for_each(|child| drop(child.wait()));
        assert_eq!(found, [true, true]);
        assert_eq!(listed.len(), 2);
        assert!(!may_be_executing(children[0].id()), "it is gone");
        assert!(!may_be_executing(2), "a thread of the kernel, or nobody");
        assert!(began_ticks(1).is_some_and(|first| Some(first) <= began_ticks(std::process::id())));
    }

    #[test]
    fn many_processes_are_counted() {
        let pids: Vec<u32> = (0..NAMED_MAX as u32 + 3).map(|n| u32::MAX - n).collect();
        assert!(listed(&pids).ends_with(", 3 more"));
    }
}
