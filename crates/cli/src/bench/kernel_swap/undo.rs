//! What has to be put back, newest first.
//!
//! The list is a static because two parties may have to work through it: the owner's `drop`, and
//! the panic hook of a build that aborts on panics. Each step is taken off before it is carried
//! out, so that none is done twice.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use super::sys;
use crate::say;

static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());
/// Held for as long as something is set up: a second set-up would save the first one's settings
/// as if they were the machine's own.
static ONE: Mutex<()> = Mutex::new(());

/// How often, and after which pause, a device that is busy is tried again.
const BUSY_TRIES: u32 = 50;
const BUSY_WAIT: Duration = Duration::from_millis(20);

/// The same for memory to take pages back from a swap file.
const MEMORY_TRIES: u32 = 100;
const MEMORY_WAIT: Duration = Duration::from_millis(100);

/// One thing to put back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A setting and its old value.
    Write(PathBuf, String),
    /// A swap file to leave off.
    SwapOff(PathBuf),
    /// A file to delete.
    Remove(PathBuf),
    /// A zram device of ours to empty and take away: its files and its number.
    RemoveZram { reset: PathBuf, hot_remove: PathBuf, id: u32 },
}

impl Step {
    fn take_back(&self) -> Result<(), String> {
        match self {
            Step::Write(path, value) => {
                fs::write(path, value).map_err(|e| format!("{} = {value}: {e}", path.display()))
            }
            Step::SwapOff(path) => {
                // Somebody at a memory limit may have pages in it that cannot come back just now.
                let mut tries = 0;
                loop {
                    match sys::swap_off(path) {
                        Err(e) if e.kind() == ErrorKind::OutOfMemory && tries < MEMORY_TRIES => {
                            tries += 1;
                            std::thread::sleep(MEMORY_WAIT);
                        }
                        other => {
                            return other.map_err(|e| format!("swapoff {}: {e}", path.display()))
                        }
                    }
                }
            }
            Step::Remove(path) => match fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("rm {}: {e}", path.display()))
                }
                _ => Ok(()),
            },
            Step::RemoveZram { reset, hot_remove, id } => {
                // Something that looks at new block devices may still have it open for a moment.
                let mut tries = 0;
                loop {
                    let gone =
                        fs::write(reset, "1").and_then(|()| fs::write(hot_remove, id.to_string()));
                    match gone {
                        Err(e) if e.kind() == ErrorKind::ResourceBusy && tries < BUSY_TRIES => {
                            tries += 1;
                            std::thread::sleep(BUSY_WAIT);
                        }
                        other => return other.map_err(|e| format!("zram{id} hot_remove: {e}")),
                    }
                }
            }
        }
    }
}

/// The right to change the machine, and the duty to undo it.
pub(super) struct Undo {
    _one: MutexGuard<'static, ()>,
}

impl Undo {
    pub(super) fn begin() -> Undo {
        static HOOK: Once = Once::new();
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                run_all();
                before(info);
            }));
        });
        Undo { _one: one }
    }

    pub(super) fn push(&self, step: Step) {
        STEPS.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// Where the list stands, for [`Undo::run_to`].
    pub(super) fn mark(&self) -> usize {
        STEPS.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes back what came after `mark`; what cannot be is named, and the rest is done
    /// nevertheless.
    pub(super) fn run_to(&self, mark: usize) -> Vec<String> {
        take_back_to(mark)
    }

    /// Takes everything back.
    pub(super) fn run(&self) -> Vec<String> {
        run_all()
    }
}

fn run_all() -> Vec<String> {
    let had_any = STEPS.try_lock().is_ok_and(|steps| !steps.is_empty());
    let failures = take_back_to(0);
    if had_any && failures.is_empty() {
        say!("terrace: the kernel's swap is removed, settings are as before");
    }
    failures
}

fn take_back_to(mark: usize) -> Vec<String> {
    // A panic while the list is locked cannot happen outside `push`, which does nothing that can.
    let Ok(mut steps) = STEPS.try_lock() else { return vec!["steps in use".into()] };
    let mut failures = Vec::new();
    while steps.len() > mark {
        if let Some(Err(failure)) = steps.pop().map(|step| step.take_back()) {
            failures.push(failure);
        }
    }
    failures
}
