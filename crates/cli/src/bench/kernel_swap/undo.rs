//! What has to be put back, newest first.
//!
//! The list is a static because two parties may have to work through it: the owner's `drop`, and
//! the panic hook of a build that aborts on panics. Each step is taken off before it is carried
//! out, so that none is done twice.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::sys;

static STEPS: Mutex<Vec<Step>> = Mutex::new(Vec::new());
/// Held for as long as something is set up: a second set-up would save the first one's settings
/// as if they were the machine's own.
static ONE: Mutex<()> = Mutex::new(());

/// One thing to put back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// A setting and its old value.
    Write(PathBuf, String),
    /// A swap file to leave off.
    SwapOff(PathBuf),
    /// A file to delete.
    Remove(PathBuf),
}

impl Step {
    fn take_back(&self) -> Result<(), String> {
        match self {
            Step::Write(path, value) => {
                fs::write(path, value).map_err(|e| format!("{} = {value}: {e}", path.display()))
            }
            Step::SwapOff(path) => {
                sys::swap_off(path).map_err(|e| format!("swapoff {}: {e}", path.display()))
            }
            Step::Remove(path) => match fs::remove_file(path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("rm {}: {e}", path.display()))
                }
                _ => Ok(()),
            },
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

    /// Takes everything back; what cannot be is named, and the rest is done nevertheless.
    pub(super) fn run(&self) -> Vec<String> {
        run_all()
    }
}

fn run_all() -> Vec<String> {
    // A panic while the list is locked cannot happen outside `push`, which does nothing that can.
    let Ok(mut steps) = STEPS.try_lock() else { return vec!["steps in use".into()] };
    let had_swap = steps.iter().any(|s| matches!(s, Step::SwapOff(_)));
    let mut failures = Vec::new();
    while let Some(step) = steps.pop() {
        if let Err(failure) = step.take_back() {
            failures.push(failure);
        }
    }
    if had_swap && failures.is_empty() {
        eprintln!("terrace: zswap and its swap file are removed, settings are as before");
    }
    failures
}
