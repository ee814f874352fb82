//! The configurations of TierScape's section 7.1, and those added here.

use terrace_core::tier::{Codec, Pool, TierSpec};

use crate::config::write;
use crate::preset::{dram, Preset, DRAM_USD_PER_GIB_MONTH};

/// Which line of the plots a configuration belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// Plain: no Terrace, no swap.
    Dram,
    /// The runtime is loaded and moves nothing: what sampling costs.
    Control,
    /// Two tiers, the second of them the kernel's zswap.
    Kernel,
    /// Two tiers, the second of them the same codec and pool in Terrace.
    Own,
    /// Six tiers, waterfall.
    Waterfall,
    /// Six tiers, analytical.
    Analytical,
    /// Least money for an accepted slowdown, all tiers there are.
    Best,
    /// The same on media that the machine really has.
    BestReal,
}

impl Family {
    /// Whether it is one of Terrace's, to be compared with the kernel's.
    pub(super) fn is_terrace(self) -> bool {
        !matches!(self, Family::Dram | Family::Control | Family::Kernel)
    }

    /// What it is called in plots.
    pub(super) fn title(self) -> &'static str {
        match self {
            Family::Dram => "DRAM",
            Family::Control => "runtime only",
            Family::Kernel => "2T, the kernel's zswap",
            Family::Own => "2T in Terrace",
            Family::Waterfall => "6T-WF, waterfall",
            Family::Analytical => "6T-AM, by alpha",
            Family::Best => "--max-slowdown (best), all tiers",
            Family::BestReal => "--max-slowdown (best-real), real media",
        }
    }
}

/// One way to place memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Configuration {
    /// Name on the command line, in files and reports.
    pub name: &'static str,
    /// Which line of the plots it is on.
    pub family: Family,
    /// What `terrace run` is told besides tiers and windows.
    arguments: &'static [&'static str],
    /// Whether it is run when nothing is chosen.
    pub is_default: bool,
}

const fn of(
    name: &'static str,
    family: Family,
    arguments: &'static [&'static str],
) -> Configuration {
    Configuration { name, family, arguments, is_default: true }
}

const fn on_request(c: Configuration) -> Configuration {
    Configuration { is_default: false, ..c }
}

/// All of them, in the order of the reports.
pub(super) const ALL: &[Configuration] = &[
    of("dram", Family::Dram, &[]),
    on_request(of("none", Family::Control, &["--policy", "none"])),
    of("2t-c", Family::Kernel, &["--policy", "kernel-two-tier", "--threshold", "conservative"]),
    of("2t-m", Family::Kernel, &["--policy", "kernel-two-tier", "--threshold", "moderate"]),
    of("2t-a", Family::Kernel, &["--policy", "kernel-two-tier", "--threshold", "aggressive"]),
    of("2t-own-c", Family::Own, &["--policy", "waterfall", "--threshold", "conservative"]),
    of("2t-own-m", Family::Own, &["--policy", "waterfall", "--threshold", "moderate"]),
    of("2t-own-a", Family::Own, &["--policy", "waterfall", "--threshold", "aggressive"]),
    of("6t-wf-c", Family::Waterfall, &["--policy", "waterfall", "--threshold", "conservative"]),
    of("6t-wf-m", Family::Waterfall, &["--policy", "waterfall", "--threshold", "moderate"]),
    of("6t-wf-a", Family::Waterfall, &["--policy", "waterfall", "--threshold", "aggressive"]),
    of("6t-am-0.9", Family::Analytical, &["--policy", "analytical", "--alpha", "0.9"]),
    of("6t-am-0.5", Family::Analytical, &["--policy", "analytical", "--alpha", "0.5"]),
    on_request(of("6t-am-0.3", Family::Analytical, &["--policy", "analytical", "--alpha", "0.3"])),
    on_request(of("6t-am-0.2", Family::Analytical, &["--policy", "analytical", "--alpha", "0.2"])),
    of("6t-am-0.1", Family::Analytical, &["--policy", "analytical", "--alpha", "0.1"]),
    of("best-2", Family::Best, &["--max-slowdown", "2%"]),
    of("best-5", Family::Best, &["--max-slowdown", "5%"]),
    of("best-10", Family::Best, &["--max-slowdown", "10%"]),
    // As slow as zswap's 2T-A is on a small machine.
    on_request(of("best-25", Family::Best, &["--max-slowdown", "25%"])),
    on_request(of("best-50", Family::Best, &["--max-slowdown", "50%"])),
    on_request(of("best-100", Family::Best, &["--max-slowdown", "100%"])),
    on_request(of("best-125", Family::Best, &["--max-slowdown", "125%"])),
    on_request(of("best-150", Family::Best, &["--max-slowdown", "150%"])),
    on_request(of("best-real-2", Family::BestReal, &["--max-slowdown", "2%"])),
    of("best-real-5", Family::BestReal, &["--max-slowdown", "5%"]),
    on_request(of("best-real-10", Family::BestReal, &["--max-slowdown", "10%"])),
];

/// Finds one by name.
pub(super) fn find(name: &str) -> Option<&'static Configuration> {
    ALL.iter().find(|c| c.name == name)
}

impl Configuration {
    /// `--max-slowdown` with so many per cent, on media that the machine really has. What its
    /// name and arguments take is never given back: an evaluation makes a handful.
    pub(super) fn at_slowdown(percent: f64) -> Configuration {
        let arguments = vec!["--max-slowdown", format!("{percent}%").leak()];
        of(format!("slowdown-{percent}").leak(), Family::BestReal, arguments.leak())
    }

    /// The analytical policy with this knob on the same tiers, made in the same way.
    pub(super) fn at_alpha(alpha: f64) -> Configuration {
        let arguments = vec!["--policy", "analytical", "--alpha", format!("{alpha}").leak()];
        of(format!("alpha-{alpha}").leak(), Family::BestReal, arguments.leak())
    }

    /// Whether the program runs without `terrace run`.
    pub(super) fn is_plain(&self) -> bool {
        self.family == Family::Dram
    }

    /// Whether zswap has to be set up for it.
    pub(super) fn needs_swap(&self) -> bool {
        self.family == Family::Kernel
    }

    /// Arguments of `terrace run` besides tiers, windows and the timeline.
    pub(super) fn arguments(&self) -> &'static [&'static str] {
        self.arguments
    }

    /// The compressed tiers. Those of `Best` are what `auto` and `tierscape` name together.
    pub(super) fn tiers(&self) -> Vec<TierSpec> {
        match self.family {
            Family::Dram => Vec::new(),
            // Google's: lzo and zsmalloc in DRAM. For the kernel it names what is in the reports.
            Family::Kernel | Family::Own | Family::Control => {
                let dram = dram(DRAM_USD_PER_GIB_MONTH);
                vec![TierSpec::new(Pool::Zsmalloc, Codec::Lzo, dram)]
            }
            Family::Waterfall | Family::Analytical => Preset::Tierscape.tiers(),
            Family::BestReal => Preset::Auto.tiers(),
            Family::Best => {
                let mut all = Preset::Auto.tiers();
                for tier in Preset::Tierscape.tiers() {
                    if all.iter().all(|t| t.name != tier.name) {
                        all.push(tier);
                    }
                }
                all
            }
        }
    }

    /// A configuration file with these tiers.
    pub(super) fn toml(&self) -> String {
        write::toml(&dram(DRAM_USD_PER_GIB_MONTH), &self.tiers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file;

    #[test]
    fn names_are_unique_and_files_can_be_read() {
        for (n, c) in ALL.iter().enumerate() {
            assert!(ALL[..n].iter().all(|other| other.name != c.name), "{}", c.name);
            assert_eq!(find(c.name), Some(c));
            let config = file::parse(c.name, &c.toml(), Preset::Auto).unwrap();
            if !c.is_plain() {
                assert_eq!(config.tiers, c.tiers(), "{}", c.name);
            }
        }
        assert_eq!(
            find("2t-a").map(|c| c.tiers()[0].name.clone()),
            Some("zsmalloc+lzo+dram".into())
        );
        assert_eq!(find("best-5").map(|c| c.tiers().len()), Some(8));
        assert!(find("3t").is_none());
        let (policy, knob) = (Configuration::at_slowdown(2.5), Configuration::at_alpha(0.65));
        assert_eq!((policy.name, policy.arguments()[1]), ("slowdown-2.5", "2.5%"));
        assert_eq!((knob.name, knob.arguments()[3]), ("alpha-0.65", "0.65"));
        assert_eq!(policy.tiers(), knob.tiers());
    }
}
