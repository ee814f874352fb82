//! What was promised beforehand, computed from what was measured: met, missed or undecided.

use serde::Serialize;

use super::configurations::Family;
use super::statistics::Verdict;
use super::summary::{ConfigSummary, Noise};

/// Points of TCO to save beyond the kernel's two tiers at no more slowdown.
const SAVED_BAR: f64 = 0.20;
/// Points of slowdown to be below the kernel's two tiers at no less saved.
const SLOWDOWN_BAR: f64 = 0.05;
/// Most processor time for an application's.
const TAX_BAR: f64 = 0.05;
/// The kernel's configuration that the first two compare with.
const REFERENCE: &str = "2t-a";

/// One promise.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Bar {
    /// What was promised.
    pub what: String,
    /// What was measured, in a sentence.
    pub measured: String,
    /// What can be said about it.
    pub verdict: Verdict,
}

/// The promises that concern a workload.
pub(super) fn of(workload: &str, configs: &[ConfigSummary], noise: &Noise) -> Vec<Bar> {
    let at = Bars { configs, noise };
    let mut bars = Vec::new();
    if matches!(workload, "redis" | "memcached") {
        bars.extend([at.saved_at_no_more_slowdown(), at.slowdown_at_no_less_saved()]);
    } else {
        bars.push(at.frontier());
    }
    bars.extend([at.tail(), at.tax(), at.ordering()]);
    bars
}

struct Bars<'a> {
    configs: &'a [ConfigSummary],
    noise: &'a Noise,
}

impl Bars<'_> {
    fn get(&self, name: &str) -> Option<&ConfigSummary> {
        self.configs.iter().find(|c| c.name == name)
    }

    fn terrace(&self) -> impl Iterator<Item = &ConfigSummary> {
        self.configs.iter().filter(|c| c.configuration().family.is_terrace())
    }

    fn kernel(&self) -> impl Iterator<Item = &ConfigSummary> {
        self.configs.iter().filter(|c| c.configuration().family == Family::Kernel)
    }

    /// Single runs have no interval; nothing that rests on them is decided.
    fn doubt(
        &self,
        a: &ConfigSummary,
        b: &ConfigSummary,
        of: fn(&ConfigSummary, &Noise) -> f64,
    ) -> f64 {
        if a.runs < 2 || b.runs < 2 {
            return f64::INFINITY;
        }
        of(a, self.noise).max(of(b, self.noise))
    }

    fn saved_at_no_more_slowdown(&self) -> Bar {
        let what = format!(
            "at least {:.0} points more saved than {REFERENCE} at no more slowdown",
            SAVED_BAR * 100.0
        );
        let Some(reference) = self.get(REFERENCE) else { return not_measured(what) };
        // The better of those that are slower within the noise would be a gift.
        let best = |allowance: f64| {
            self.terrace()
                .filter(|c| {
                    let doubt = self.doubt(c, reference, ConfigSummary::slowdown_noise);
                    let doubt = if doubt.is_finite() { doubt } else { 0.0 };
                    c.slowdown <= reference.slowdown + allowance * doubt
                })
                .max_by(|a, b| a.tco_saved.total_cmp(&b.tco_saved))
        };
        let gain = |c: &ConfigSummary| c.tco_saved - reference.tco_saved;
        let verdict = |c: &ConfigSummary| {
            Verdict::at_least(
                gain(c),
                SAVED_BAR,
                self.doubt(c, reference, ConfigSummary::saved_noise),
            )
        };
        let (sure, possible) = (best(-1.0).map(&verdict), best(1.0).map(&verdict));
        let verdict = match (sure, possible) {
            (Some(Verdict::Met), _) => Verdict::Met,
            // Nothing at all, or nothing else than single runs.
            (_, None) if self.terrace().all(|c| c.runs < 2) => Verdict::Undecided,
            (_, None | Some(Verdict::Missed)) => Verdict::Missed,
            _ => Verdict::Undecided,
        };
        let measured = match best(0.0) {
            Some(c) => format!(
                "{} saves {:+.1} points more ({:.1} against {:.1} %) at {:.1} against {:.1} % \
                 slowdown",
                c.name,
                gain(c) * 100.0,
                c.tco_saved * 100.0,
                reference.tco_saved * 100.0,
                c.slowdown * 100.0,
                reference.slowdown * 100.0
            ),
            None => format!(
                "no configuration is as quick as {REFERENCE} ({:.1} % slowdown)",
                reference.slowdown * 100.0
            ),
        };
        Bar { what, measured, verdict }
    }

    fn slowdown_at_no_less_saved(&self) -> Bar {
        let what = format!(
            "at least {:.0} points less slowdown than {REFERENCE} at no less saved",
            SLOWDOWN_BAR * 100.0
        );
        let Some(reference) = self.get(REFERENCE) else { return not_measured(what) };
        let (measured, verdict) = self.quicker_than(reference, SLOWDOWN_BAR);
        Bar { what, measured, verdict }
    }

    /// Whether some configuration that saves no less is quicker than `kernel` by this.
    fn quicker_than(&self, kernel: &ConfigSummary, bar: f64) -> (String, Verdict) {
        let saves = |c: &&ConfigSummary| c.tco_saved >= kernel.tco_saved;
        let best = self.terrace().filter(saves).min_by(|a, b| a.slowdown.total_cmp(&b.slowdown));
        let Some(best) = best else { return self.nothing_saves_as_much_as(kernel) };
        let gain = kernel.slowdown - best.slowdown;
        let doubt = self.doubt(best, kernel, ConfigSummary::slowdown_noise);
        let text = format!(
            "{} {:.1} %, {} {:.1} % slowdown (saved {:.1} and {:.1} %)",
            kernel.name,
            kernel.slowdown * 100.0,
            best.name,
            best.slowdown * 100.0,
            kernel.tco_saved * 100.0,
            best.tco_saved * 100.0
        );
        (text, Verdict::at_least(gain, bar, doubt))
    }

    /// A miss, unless the one that comes closest might in truth.
    fn nothing_saves_as_much_as(&self, kernel: &ConfigSummary) -> (String, Verdict) {
        let text = format!(
            "no configuration saves as much as {} ({:.1} %)",
            kernel.name,
            kernel.tco_saved * 100.0
        );
        let closest = self.terrace().max_by(|a, b| a.tco_saved.total_cmp(&b.tco_saved));
        let verdict = closest.map_or(Verdict::Undecided, |c| {
            let doubt = self.doubt(c, kernel, ConfigSummary::saved_noise);
            Verdict::at_least(c.tco_saved - kernel.tco_saved, 0.0, doubt)
        });
        (text, verdict)
    }

    fn frontier(&self) -> Bar {
        let what = "on or beyond the kernel's frontier everywhere".to_owned();
        self.of_each_kernel_point(what, |k| self.quicker_than(k, 0.0))
    }

    fn tail(&self) -> Bar {
        let what =
            "p99 latency lower than 2T's at no less saved, in every configuration".to_owned();
        self.of_each_kernel_point(what, |kernel| {
            let saves = |c: &&ConfigSummary| c.tco_saved >= kernel.tco_saved;
            let best =
                self.terrace().filter(saves).min_by(|a, b| a.p99_ratio.total_cmp(&b.p99_ratio));
            let Some(best) = best else { return self.nothing_saves_as_much_as(kernel) };
            let gain = kernel.p99_ratio - best.p99_ratio;
            let doubt = self.doubt(best, kernel, ConfigSummary::p99_noise);
            let text = format!(
                "{} {:.2}x, {} {:.2}x of DRAM's",
                kernel.name, kernel.p99_ratio, best.name, best.p99_ratio
            );
            (text, Verdict::at_least(gain, 0.0, doubt))
        })
    }

    fn of_each_kernel_point(
        &self,
        what: String,
        judge: impl Fn(&ConfigSummary) -> (String, Verdict),
    ) -> Bar {
        let all: Vec<(String, Verdict)> = self.kernel().map(judge).collect();
        if all.is_empty() {
            return not_measured(what);
        }
        let say = |(text, verdict): &(String, Verdict)| format!("{text}: {}", verdict.word());
        Bar {
            what,
            measured: all.iter().map(say).collect::<Vec<_>>().join("; "),
            verdict: Verdict::all(all.iter().map(|(_, v)| *v)),
        }
    }

    fn tax(&self) -> Bar {
        let what = format!("processor tax at most {:.0} %", TAX_BAR * 100.0);
        let worst = self.terrace().max_by(|a, b| a.cpu_tax.total_cmp(&b.cpu_tax));
        let Some(worst) = worst else { return not_measured(what) };
        let doubt = if worst.runs < 2 {
            f64::INFINITY
        } else {
            (worst.cpu_tax_ci[1] - worst.cpu_tax_ci[0]) / 2.0
        };
        Bar {
            what,
            measured: format!("at most {:.1} %, with {}", worst.cpu_tax * 100.0, worst.name),
            verdict: Verdict::at_least(TAX_BAR - worst.cpu_tax, 0.0, doubt),
        }
    }

    /// Figure 8 as sentences: who saves more, who is slower.
    fn ordering(&self) -> Bar {
        let what = "the order of the configurations as in the paper".to_owned();
        let mut all: Vec<(String, Verdict)> = Vec::new();
        // Each saves more than the one before it, and is no quicker.
        for line in [
            ["2t-c", "2t-m", "2t-a"],
            ["6t-wf-c", "6t-wf-m", "6t-wf-a"],
            ["6t-am-0.9", "6t-am-0.5", "6t-am-0.1"],
        ] {
            for pair in line.windows(2) {
                all.extend(self.saves_more(pair[1], pair[0]));
                all.extend(self.is_slower(pair[1], pair[0]));
            }
        }
        for (six, two) in
            [("6t-wf-c", "2t-c"), ("6t-wf-m", "2t-m"), ("6t-wf-a", "2t-a"), ("6t-am-0.1", "2t-a")]
        {
            all.extend(self.saves_more(six, two));
        }
        all.extend(self.is_slower("2t-a", "6t-am-0.1"));
        if all.is_empty() {
            return not_measured(what);
        }
        let count = |v| all.iter().filter(|(_, of)| *of == v).count();
        let (met, undecided) = (count(Verdict::Met), count(Verdict::Undecided));
        let otherwise: Vec<&str> =
            all.iter().filter(|(_, v)| *v == Verdict::Missed).map(|(t, _)| t.as_str()).collect();
        let mut measured = format!("{met} of {} hold, {undecided} undecided", all.len());
        if !otherwise.is_empty() {
            measured += &format!("; otherwise here: {}", otherwise.join("; "));
        }
        Bar { what, measured, verdict: Verdict::all(all.iter().map(|(_, v)| *v)) }
    }

    fn saves_more(&self, more: &str, less: &str) -> Option<(String, Verdict)> {
        let (a, b) = (self.get(more)?, self.get(less)?);
        let text = format!(
            "{more} saves more than {less} ({:.1}, {:.1} %)",
            a.tco_saved * 100.0,
            b.tco_saved * 100.0
        );
        let doubt = self.doubt(a, b, ConfigSummary::saved_noise);
        Some((text, Verdict::at_least(a.tco_saved - b.tco_saved, 0.0, doubt)))
    }

    fn is_slower(&self, slower: &str, quicker: &str) -> Option<(String, Verdict)> {
        let (a, b) = (self.get(slower)?, self.get(quicker)?);
        let text = format!(
            "{slower} is slower than {quicker} ({:.1}, {:.1} %)",
            a.slowdown * 100.0,
            b.slowdown * 100.0
        );
        let doubt = self.doubt(a, b, ConfigSummary::slowdown_noise);
        Some((text, Verdict::at_least(a.slowdown - b.slowdown, 0.0, doubt)))
    }
}

fn not_measured(what: String) -> Bar {
    let measured = "not measured: configurations that it compares are missing".to_owned();
    Bar { what, measured, verdict: Verdict::Undecided }
}
