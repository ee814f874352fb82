//! What a session knows of its applications, for `terrace status`: those that it plans for, the
//! last ones that ended, and one sum of all others that did. A program that starts a process for
//! every job must not make the answer grow with each of them.

use std::collections::{BTreeMap, VecDeque};

use serde_json::Value;

use crate::status::{ApplicationStatus, EndedBefore};

/// Applications that ended of which all is kept.
const ENDED_KEPT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Applications {
    known: BTreeMap<u32, ApplicationStatus>,
    /// Those of them that ended, oldest first.
    ended: VecDeque<u32>,
    before: EndedBefore,
}

impl Applications {
    /// Takes in the newest window of an application.
    pub(super) fn publish(&mut self, status: ApplicationStatus) {
        // After an exec, or under an id that was given out anew, it is another one.
        self.ended.retain(|pid| *pid != status.pid);
        self.known.insert(status.pid, status);
    }

    /// Hindsight has the last word on an application.
    pub(super) fn score(&mut self, pid: u32, hindsight: Value) {
        if let Some(application) = self.known.get_mut(&pid) {
            if application.last.is_object() {
                application.last["hindsight"] = hindsight;
            }
        }
    }

    /// Process `pid` is no longer planned for.
    pub(super) fn end(&mut self, pid: u32) {
        match self.known.get_mut(&pid) {
            Some(application) if !application.has_ended => application.has_ended = true,
            _ => return,
        }
        self.ended.push_back(pid);
        if self.ended.len() > ENDED_KEPT {
            // The end report is about the largest, whenever that ended.
            let largest = self.largest().map(|a| a.pid);
            let oldest = self.ended.iter().position(|pid| Some(*pid) != largest).unwrap_or(0);
            let oldest = self.ended.remove(oldest).and_then(|pid| self.known.remove(&pid));
            if let Some(oldest) = oldest {
                self.before.add(&oldest.totals);
            }
        }
    }

    /// Whether there never was any.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.before.applications == 0
    }

    /// The application that is or was process `pid`, if it is kept.
    pub(super) fn get(&self, pid: u32) -> Option<&ApplicationStatus> {
        self.known.get(&pid)
    }

    /// All that are kept, by process id.
    pub(super) fn all(&self) -> Vec<ApplicationStatus> {
        self.known.values().cloned().collect()
    }

    /// The sum of those that are not.
    pub(super) fn before(&self) -> EndedBefore {
        self.before.clone()
    }

    /// The one with the most memory at its last window.
    pub(super) fn largest(&self) -> Option<&ApplicationStatus> {
        let tiered = self.known.values().filter(|a| a.last.is_object());
        tiered.max_by_key(|a| a.last["managed_bytes"].as_u64().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn window(pid: u32, managed_bytes: u64) -> ApplicationStatus {
        ApplicationStatus {
            pid,
            command: "job".into(),
            started_s: 1.0,
            has_ended: false,
            last: json!({ "managed_bytes": managed_bytes }),
            totals: json!({ "faults": 2, "stalled_ms": 0.5 }),
        }
    }

    #[test]
    fn what_ended_is_marked_and_only_the_last_ones_and_the_largest_are_kept() {
        let mut applications = Applications::default();
        for pid in 1..=100 {
            applications.publish(window(pid, if pid == 3 { 9 } else { 5 }));
            if pid != 50 {
                applications.end(pid);
                applications.end(pid);
            }
        }
        let all = applications.all();
        let running: Vec<u32> = all.iter().filter(|a| !a.has_ended).map(|a| a.pid).collect();
        assert_eq!(running, [50]);
        let ended: Vec<u32> = all.iter().filter(|a| a.has_ended).map(|a| a.pid).collect();
        assert_eq!(ended, std::iter::once(3).chain(86..=100).collect::<Vec<_>>());
        assert_eq!(applications.largest().map(|a| a.pid), Some(3));
        let before = applications.before();
        assert_eq!((before.applications, &before.totals["faults"]), (83, &json!(166)));
        assert_eq!(before.totals["stalled_ms"], json!(41.5));
    }

    #[test]
    fn who_comes_after_an_exec_has_not_ended() {
        let mut applications = Applications::default();
        applications.publish(window(7, 5));
        applications.end(7);
        applications.publish(window(7, 6));
        assert!(!applications.all()[0].has_ended);
        applications.end(8);
        assert_eq!(applications.all().len(), 1);
    }
}
