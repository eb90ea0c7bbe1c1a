//! The result of a run, as a table to read and as JSON for programs. Names in the JSON are stable; others may be added.

use crate::faults::kind::FaultKind;
use crate::gaps::Longest;
use serde::Serialize;
use std::fmt::{self, Write};
use std::path::PathBuf;

/// The faults of a run, and what it found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// A run with the same seed has the same faults.
    pub seed: u64,
    /// How long faults struck, in minutes.
    pub minutes: f64,
    /// Processes of servers.
    pub servers: usize,
    /// `embedded` or `zookeeper`.
    pub coordinator: String,
    /// Servers had network namespaces, and disks, of their own.
    pub namespaces: bool,
    /// Operations that were answered.
    pub operations: u64,
    /// Operations that were refused, without effect.
    pub refused: u64,
    /// Operations that may or may not have taken effect.
    pub unknown: u64,
    /// Reads that clients answered from hash indexes, by the sessions that they had at the end.
    pub direct_reads: u64,
    /// Keys with a history.
    pub keys: usize,
    /// Keys with a history that no single register could have, and answers that no store may give.
    pub violations: u64,
    /// Keys with a history that took too long to search.
    pub undecided: u64,
    /// Keys that were written once and acknowledged, and do not have that value at the end.
    pub lost_writes: u64,
    /// The replicas were compared, and are the same; `null` if they could not be.
    pub replicas_equal: Option<bool>,
    /// Faults by kind.
    pub faults: Vec<KindReport>,
    /// Rounds of faults, in order.
    pub rounds: Vec<RoundReport>,
    /// The metric `leeward_lease_lateness_seconds` of the servers that answer at the end.
    pub lease_lateness: Vec<Lateness>,
    /// Kinds that could not strike on this machine, and why.
    pub left_out: Vec<String>,
    /// Descriptions of everything that went wrong.
    pub findings: Vec<String>,
    /// Servers that had to be restarted before the cluster was whole, as an operator would have had to do.
    pub restarts: Vec<String>,
    /// Where the logs of all processes are, if they were kept.
    pub logs: Option<PathBuf>,
}

/// A kind of fault.
#[derive(Clone, Debug, Serialize)]
pub struct KindReport {
    /// Name of the kind, such as `kill`.
    pub kind: &'static str,
    /// How often it struck.
    pub count: u64,
    /// Longest time in which some region answered no operation, from the fault until the cluster was whole.
    pub longest_unavailable_ms: u64,
    /// Longest time in which some region acknowledged no write.
    pub longest_without_write_ms: u64,
    /// The same two, over the rounds in which no other fault struck; `null` if there was none.
    pub alone: Option<LongestMs>,
}

/// Longest times, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LongestMs {
    /// Without an answer.
    pub unavailable_ms: u64,
    /// Without an acknowledged write.
    pub without_write_ms: u64,
}

/// One or two faults that struck together.
#[derive(Clone, Debug, Serialize)]
pub struct RoundReport {
    /// When, in seconds since the run began.
    pub at_seconds: f64,
    /// How long it took until the cluster was whole.
    pub seconds: f64,
    /// Descriptions of the faults.
    pub faults: Vec<String>,
    /// Longest time in which some region answered no operation.
    pub longest_unavailable_ms: u64,
    /// Longest time in which some region acknowledged no write.
    pub longest_without_write_ms: u64,
    /// Only hostile clients struck.
    pub is_hostile: bool,
    /// Regions whose primary or members changed; `null` if no server answered.
    pub changes: Option<Vec<String>>,
}

/// How late a server handled messages of leases, since its process began.
#[derive(Clone, Debug, Serialize)]
pub struct Lateness {
    /// From 1.
    pub server: usize,
    /// Messages.
    pub count: u64,
    /// Messages that were handled within 50 ms.
    pub within_50_ms: u64,
}

impl Lateness {
    /// From the metrics of a server; `None` if they have nothing about leases.
    pub(crate) fn of_metrics(server: usize, metrics: &str) -> Option<Lateness> {
        let number = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        let count = number("leeward_lease_lateness_seconds_count ")?;
        let within_50_ms = number("leeward_lease_lateness_seconds_bucket{le=\"0.05\"} ")?;
        Some(Lateness { server, count, within_50_ms })
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lateness { server, count, within_50_ms } = self;
        let share = *within_50_ms as f64 * 100.0 / (*count).max(1) as f64;
        write!(
            f,
            "server {server}: {within_50_ms} of {count} messages of leases ({share:.3} %) were handled within 50 ms"
        )
    }
}

impl From<Longest> for LongestMs {
    fn from(longest: Longest) -> LongestMs {
        LongestMs { unavailable_ms: longest.of_any / 1_000, without_write_ms: longest.of_writes / 1_000 }
    }
}

impl KindReport {
    pub(crate) fn new(kind: FaultKind, count: u64, longest: Longest, alone: Option<Longest>) -> KindReport {
        let LongestMs { unavailable_ms, without_write_ms } = longest.into();
        KindReport {
            kind: kind.name(),
            count,
            longest_unavailable_ms: unavailable_ms,
            longest_without_write_ms: without_write_ms,
            alone: alone.map(LongestMs::from),
        }
    }
}

impl RoundReport {
    pub(crate) fn new(at_seconds: f64, seconds: f64, faults: Vec<String>, longest: Longest) -> RoundReport {
        let LongestMs { unavailable_ms, without_write_ms } = longest.into();
        RoundReport {
            at_seconds,
            seconds,
            faults,
            longest_unavailable_ms: unavailable_ms,
            longest_without_write_ms: without_write_ms,
            is_hostile: false,
            changes: None,
        }
    }
}

impl Report {
    /// Nothing is wrong, and everything was judged.
    pub fn is_clean(&self) -> bool {
        self.violations == 0
            && self.undecided == 0
            && self.lost_writes == 0
            && self.replicas_equal == Some(true)
            && self.findings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let where_ = if self.namespaces { "in network namespaces" } else { "on the loopback interface" };
        writeln!(
            f,
            "seed {}, {:.1} minutes, {} servers {where_}, coordinator: {}\n",
            self.seed, self.minutes, self.servers, self.coordinator
        )?;
        writeln!(
            f,
            "| fault | count | longest without an answer, ms | without a write | the same, where nothing else struck |"
        )?;
        writeln!(f, "|---|---|---|---|---|")?;
        for KindReport { kind, count, longest_unavailable_ms, longest_without_write_ms, alone } in &self.faults {
            let alone = alone
                .map(|LongestMs { unavailable_ms, without_write_ms }| format!("{unavailable_ms}, {without_write_ms}"));
            let alone = alone.unwrap_or_else(|| "-".into());
            writeln!(f, "| {kind} | {count} | {longest_unavailable_ms} | {longest_without_write_ms} | {alone} |")?;
        }
        let hostile: Vec<&RoundReport> = self.rounds.iter().filter(|round| round.is_hostile).collect();
        let changed =
            hostile.iter().filter(|round| round.changes.as_ref().is_some_and(|changes| !changes.is_empty())).count();
        writeln!(
            f,
            "\nprimaries or members changed in {changed} of {} rounds with hostile clients only",
            hostile.len()
        )?;
        for lateness in &self.lease_lateness {
            writeln!(f, "{lateness}")?;
        }
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        let replicas = match self.replicas_equal {
            Some(true) => "equal",
            Some(false) => "NOT EQUAL",
            None => "not compared",
        };
        writeln!(
            f,
            "\n{} operations on {} keys ({} refused, {} of unknown outcome, {} direct reads): {} violations, {} undecided, {} lost writes; \
             replicas {replicas}",
            self.operations,
            self.keys,
            self.refused,
            self.unknown,
            self.direct_reads,
            self.violations,
            self.undecided,
            self.lost_writes
        )?;
        self.restarts.iter().try_for_each(|restart| writeln!(f, "restarted: {restart}"))?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "FOUND: {finding}"))?;
        if let Some(logs) = &self.logs {
            writeln!(f, "logs of all processes: {}", logs.display())?;
        }
        f.write_char('\n')?;
        f.write_str(if self.is_clean() { "passed" } else { "FAILED" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_wrong_is_enough() {
        let clean = Report { replicas_equal: Some(true), ..Report::default() };
        assert!(clean.is_clean() && clean.to_string().ends_with("passed"));
        let bad = [
            Report { violations: 1, ..clean.clone() },
            Report { undecided: 1, ..clean.clone() },
            Report { lost_writes: 1, ..clean.clone() },
            Report { replicas_equal: None, ..clean.clone() },
            Report { replicas_equal: Some(false), ..clean.clone() },
            Report { findings: vec!["a process died".into()], ..clean.clone() },
        ];
        assert!(bad.iter().all(|report| !report.is_clean() && report.to_string().ends_with("FAILED")));
    }

    #[test]
    fn lateness_is_read_from_metrics() {
        let metrics = "# TYPE leeward_lease_lateness_seconds histogram\nleeward_lease_lateness_seconds_sum 0.5\n\
                       leeward_lease_lateness_seconds_count 12\nleeward_lease_lateness_seconds_bucket{le=\"0.02\"} 9\n\
                       leeward_lease_lateness_seconds_bucket{le=\"0.05\"} 11\n";
        let lateness = Lateness::of_metrics(2, metrics).expect("a histogram");
        assert_eq!((lateness.server, lateness.count, lateness.within_50_ms), (2, 12, 11));
        assert!(Lateness::of_metrics(2, "leeward_commands_total 3\n").is_none());
    }

    #[test]
    fn names_of_the_json_stay() {
        let kind = KindReport::new(FaultKind::Kill, 2, Longest { of_any: 1_500_000, of_writes: 2_000_000 }, None);
        let report = Report { faults: vec![kind], ..Report::default() };
        let json = serde_json::to_value(&report).expect("plain data");
        for name in ["violations", "lost_writes", "replicas_equal", "seed", "findings"] {
            assert!(json.get(name).is_some(), "{name}");
        }
        let fault = &json["faults"][0];
        assert_eq!((&fault["kind"], &fault["count"]), (&"kill".into(), &2.into()));
        assert_eq!(fault["longest_unavailable_ms"], 1_500);
    }
}
