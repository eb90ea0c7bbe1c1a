//! The election candidate of a table with a quorum: the member appointed primary, before it serves. It finds out which
//! member has the longest copy.
//!
//! With a quorum of W of N members, every committed write is in W of them. Among any N-W+1 members at least one has it
//! ([`GroupConfig::recovery_quorum`]). So it asks all promotion candidates to join its term and to report how far their
//! copies reach. After joining, a copy takes nothing more from older terms. Once enough members
//! have answered, the election candidate serves if no copy is longer than its own. Otherwise it hands the primary role
//! to the member with the longest copy.
//!
//! A restarted promotion candidate has what its volume has, and may have lost what was in its memory. It does not count
//! until all promotion candidates have answered, each with its own volume.
//!
//! The node sends the questions and passes the answers in. Any thread may use it, one at a time.

use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::{Epoch, Lsn, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::{BTreeMap, BTreeSet};

/// A promotion candidate that has not answered is asked again after this long.
const ASK_AGAIN: Nanos = Nanos::from_millis(300);

/// If not enough members have answered after this long, and a backup is among the missing ones, the primary role is
/// offered to that backup: it may reach others.
const TIMEOUT: Nanos = Nanos::from_secs(5);

/// Messages of a candidate belong to this session. Sessions that bring copies in sync have higher numbers.
pub const SESSION: u64 = 0;

/// The outcome of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not known yet.
    Open,
    /// Its own copy has all that was committed.
    Serve,
    /// The copy of this member is longer, or this member may reach more others. Propose [`GroupConfig::handed_to`] it.
    HandOver(Member),
}

/// A candidate that looks for the longest copy.
#[derive(Debug)]
pub struct Candidate {
    config: GroupConfig,
    since: Nanos,
    asked: BTreeMap<ServerId, Nanos>,
    heard: BTreeMap<ServerId, (Member, (Epoch, Lsn))>,
    /// Members whose copies are damaged.
    damaged: BTreeSet<Member>,
    /// A proposal to hand the primary role over has not ended.
    proposing: bool,
}

impl Candidate {
    /// Begins the election of the primary of `config`, in its term.
    pub fn new(now: Nanos, config: GroupConfig) -> Candidate {
        Candidate {
            config,
            since: now,
            asked: BTreeMap::new(),
            heard: BTreeMap::new(),
            damaged: BTreeSet::new(),
            proposing: false,
        }
    }

    /// Term of the election.
    pub fn term(&self) -> Epoch {
        self.config.term
    }

    /// Takes a newer configuration of the same term.
    pub fn reconfigure(&mut self, config: &GroupConfig) {
        assert_eq!(config.term, self.config.term, "another term is another candidate");
        self.config = config.clone();
    }

    /// The servers to ask now, of those that can be `reached`: each that has not answered, this one included.
    pub fn ask(&mut self, now: Nanos, reached: impl Fn(ServerId) -> bool) -> Vec<ServerId> {
        let candidates = self.config.candidates().map(|candidate| candidate.server);
        let is_due = |asked: &Nanos| now - *asked >= ASK_AGAIN;
        let mut due: Vec<ServerId> = candidates
            .filter(|server| reached(*server) && !self.heard.contains_key(server))
            .filter(|server| self.asked.get(server).is_none_or(is_due))
            .collect();
        due.sort_unstable();
        due.dedup();
        self.asked.extend(due.iter().map(|server| (*server, now)));
        due
    }

    /// Notes that a server has joined the term, with a copy up to `reach`; `None` says that the copy is damaged. A
    /// server does not count if its copy is damaged or its volume is not that of the promotion candidate. An empty copy
    /// (term 0) lost power before anything of it was durable.
    pub fn opened(&mut self, member: Member, reach: Option<(Epoch, Lsn)>) {
        let Some(reach) = reach else {
            if self.damaged.insert(member) {
                tracing::warn!(region = %self.config.region, server = %member.server, "its copy is damaged, and counts for nothing");
            }
            return;
        };
        if self.config.candidates().any(|candidate| candidate.has_volume_of(&member)) {
            self.heard.insert(member.server, (member, reach));
        }
    }

    /// Promotion candidates whose volumes have not answered.
    fn unheard(&self) -> impl Iterator<Item = Member> + '_ {
        let is_heard = |candidate: &Member| {
            self.heard.get(&candidate.server).is_some_and(|(found, _)| found.has_volume_of(candidate))
        };
        self.config.candidates().filter(move |candidate| !is_heard(candidate))
    }

    /// The outcome by what is known now. A hand-over is returned once; until its proposal has ended, the outcome is
    /// `Open`.
    pub fn verdict(&mut self, now: Nanos) -> Verdict {
        if self.proposing {
            return Verdict::Open;
        }
        let me = self.config.primary.expect("a candidate is the primary of its configuration");
        let Some((_, mine)) = self.heard.get(&me.server) else {
            return if self.is_damaged(&me) { self.step_aside(now) } else { Verdict::Open };
        };
        // A member that kept running has followed a term.
        let has_all =
            |(member, reach): &&(Member, (Epoch, Lsn))| reach.0 > Epoch(0) && self.config.kept_running(*member);
        let kept_running = self.heard.values().filter(has_all).count();
        let is_enough = kept_running >= self.config.recovery_quorum as usize || self.unheard().next().is_none();
        if !is_enough && !planted(Bug::ServeUnheard) {
            return self.hand_over(self.silent_backup(now));
        }
        let (target, reach) = self.longest().expect("its own is known");
        if *mine >= reach || planted(Bug::ServeUnheard) {
            return Verdict::Serve;
        }
        self.hand_over(Some(target))
    }

    /// The outcome where its own copy is damaged: any other copy is better.
    fn step_aside(&mut self, now: Nanos) -> Verdict {
        self.hand_over(self.longest().map(|(member, _)| member).or_else(|| self.silent_backup(now)))
    }

    /// The longest copy of those that were heard of.
    fn longest(&self) -> Option<(Member, (Epoch, Lsn))> {
        let of = self.heard.values().max_by_key(|(member, reach)| (*reach, self.config.kept_running(*member)));
        of.copied()
    }

    fn is_damaged(&self, member: &Member) -> bool {
        self.damaged.iter().any(|damaged| damaged.has_volume_of(member))
    }

    /// A backup that has not answered for long.
    fn silent_backup(&self, now: Nanos) -> Option<Member> {
        let has_answered = |backup: &Member| self.heard.contains_key(&backup.server) || self.is_damaged(backup);
        let is_late = now - self.since > TIMEOUT;
        self.config.backups.iter().copied().find(|backup| is_late && !has_answered(backup))
    }

    fn hand_over(&mut self, target: Option<Member>) -> Verdict {
        self.proposing = target.is_some();
        target.map_or(Verdict::Open, Verdict::HandOver)
    }

    /// The coordinator answered the proposal, or will not. If the primary role was handed over, a newer configuration
    /// shows it.
    pub fn proposal_ended(&mut self) {
        self.proposing = false;
    }
}

#[cfg(test)]
#[path = "candidate_tests.rs"]
mod tests;
