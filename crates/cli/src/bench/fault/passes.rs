//! Who is measured under which condition, and in which order.
//!
//! Every repetition measures everything once, in an order of its own: what comes after what would
//! otherwise be the same each time, and drift of the machine would always meet the same ones.

use terrace_core::tier::{Codec, MediumKind, Pool, TierSpec};

use crate::bench::kernel_swap::KernelTier;
use crate::preset::{self, Preset};

/// What goes on while pages are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Condition {
    /// Demotion at full speed.
    pub moving: bool,
    /// Threads that touch.
    pub threads: usize,
}

impl Condition {
    /// For file names and progress.
    pub(super) fn name(self) -> String {
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let moving = if self.moving { ", moving" } else { "" };
        format!("{} {threads}{moving}", self.threads)
    }
}

/// Which subjects are also measured while demotion goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Moving {
    /// None
    None,
    /// lz4 tiers on DRAM, zswap with lzo and zram with lz4
    Lz4,
    /// All
    All,
}

/// A tier of Terrace's or of the kernel's.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Subject {
    Tier(TierSpec),
    Kernel(KernelTier),
    /// Userfaultfd that does nothing but fill pages.
    Bare(Floor),
}

/// What nothing with userfaultfd can be quicker than.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Floor {
    /// A thread that fills pages for others, as Terrace's pager does.
    Pager,
    /// Threads that fill their pages themselves, told by a signal. No pager can be so quick.
    Alone,
}

impl Floor {
    /// Both.
    pub(super) const ALL: [Floor; 2] = [Floor::Pager, Floor::Alone];

    /// Name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Floor::Pager => "bare userfaultfd",
            Floor::Alone => "bare, self-served",
        }
    }
}

impl Subject {
    /// Name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Subject::Tier(t) => t.name.clone(),
            Subject::Kernel(k) => k.name(),
            Subject::Bare(floor) => floor.name().into(),
        }
    }

    /// Whether it can be measured like this. The bare pager stays on the CPU of one thread, and
    /// neither moves anything.
    fn can(&self, on: Condition) -> bool {
        match self {
            Subject::Bare(Floor::Pager) => on.threads == 1 && !on.moving,
            Subject::Bare(Floor::Alone) => !on.moving,
            _ => true,
        }
    }

    fn is_lz4_or_like_it(&self) -> bool {
        match self {
            Subject::Tier(t) => t.codec == Codec::Lz4 && t.medium.kind == MediumKind::Dram,
            Subject::Kernel(KernelTier::Zswap(compressor)) => compressor == "lzo",
            Subject::Kernel(KernelTier::Zram(algorithm)) => algorithm == "lz4",
            Subject::Bare(_) => false,
        }
    }
}

/// Each tier of the presets once, in their order, and deflate on DRAM, for which the kernel has a
/// counterpart.
pub(super) fn tiers() -> Vec<TierSpec> {
    let mut tiers: Vec<TierSpec> = Vec::new();
    let dram = preset::dram(preset::DRAM_USD_PER_GIB_MONTH);
    let besides = TierSpec::new(Pool::Zsmalloc, Codec::Deflate, dram);
    for tier in Preset::ALL.iter().flat_map(|p| p.tiers()).chain([besides]) {
        if !tiers.iter().any(|t| t.name == tier.name) {
            tiers.push(tier);
        }
    }
    tiers
}

/// The conditions and who is measured under each: at rest with each number of threads, and moving
/// with the first of them.
pub(super) fn passes(
    subjects: &[Subject],
    threads: &[usize],
    moving: Moving,
) -> Vec<(Condition, Vec<Subject>)> {
    let mut passes: Vec<(Condition, Vec<Subject>)> = Vec::new();
    for &threads in threads {
        let at = Condition { moving: false, threads };
        if !passes.iter().any(|(c, _)| *c == at) {
            passes.push((at, subjects.iter().filter(|s| s.can(at)).cloned().collect()));
        }
    }
    let wanted = |s: &&Subject| match moving {
        Moving::None => false,
        Moving::Lz4 => s.is_lz4_or_like_it(),
        Moving::All => true,
    };
    let Some(&threads) = threads.first() else { return passes };
    let on = Condition { moving: true, threads };
    let among: Vec<Subject> =
        subjects.iter().filter(wanted).filter(|s| s.can(on)).cloned().collect();
    if !among.is_empty() {
        passes.push((on, among));
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Vec<Subject> {
        let zswap = |c: &str| Subject::Kernel(KernelTier::Zswap(c.into()));
        vec![zswap("lzo"), zswap("deflate"), Subject::Kernel(KernelTier::Zram("lz4".into()))]
    }

    #[test]
    fn tiers_of_both_presets_are_there_once_and_deflate_on_dram() {
        let names: Vec<String> = tiers().into_iter().map(|t| t.name).collect();
        assert_eq!(names[0], "zsmalloc+lz4+dram", "the first tier is what the promise is about");
        assert_eq!(names.len(), 9);
        assert!(names.contains(&"zsmalloc+deflate+dram".to_string()));
        for preset in Preset::ALL {
            assert!(preset.tiers().iter().all(|t| names.contains(&t.name)));
        }
    }

    #[test]
    fn all_are_measured_at_rest_and_some_while_moving() {
        let subjects: Vec<Subject> =
            tiers().into_iter().map(Subject::Tier).chain(kernel()).collect();
        let passes_of = |moving| passes(&subjects, &[1, 2, 8, 2], moving);
        let lz4 = passes_of(Moving::Lz4);
        let conditions: Vec<String> = lz4.iter().map(|(c, _)| c.name()).collect();
        assert_eq!(conditions, ["1 thread", "2 threads", "8 threads", "1 thread, moving"]);
        assert!(lz4[..3].iter().all(|(_, s)| s.len() == 12));
        let names: Vec<String> = lz4[3].1.iter().map(Subject::name).collect();
        assert_eq!(names, ["zsmalloc+lz4+dram", "zbud+lz4+dram", "zswap+lzo", "zram+lz4"]);
        assert_eq!(passes_of(Moving::None).len(), 3);
        assert_eq!(passes_of(Moving::All)[3].1.len(), 12);
    }

    #[test]
    fn the_bare_pager_serves_one_thread_and_threads_serve_themselves_at_rest() {
        let floors = Floor::ALL.map(Subject::Bare);
        let subjects = [&[Subject::Tier(tiers().remove(0))], &floors[..]].concat();
        let passes = passes(&subjects, &[1, 2], Moving::All);
        let has = |floor: &Subject| -> Vec<bool> {
            passes.iter().map(|(_, s)| s.contains(floor)).collect()
        };
        assert_eq!(has(&floors[0]), [true, false, false]);
        assert_eq!(has(&floors[1]), [true, true, false]);
    }
}
