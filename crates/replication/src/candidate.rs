//! A member that was chosen as the primary of a table with a quorum, before it serves: it finds out who has the longest copy.
//!
//! With a quorum of W of N members, what is committed is in W of them, and any N-W+1 members have one that has it
//! ([`GroupConfig::must_hear`]). So the candidate asks the heirs to join its term, which ends what older terms could
//! add to their copies, and to say how far those reach (DESIGN 6, "Promotion"). Once it has heard enough it serves, if no copy is
//! longer than its own, or hands the office to who has the longest.
//!
//! An heir that was restarted has what its volume has, and may have lost what was in its memory: it does not count, until
//! the volumes of all heirs were heard of.
//!
//! Pure: the node asks and listens. Any thread, one at a time.

use leeward_format::cluster::{GroupConfig, Member};
use leeward_format::{Epoch, Lsn, ServerId};
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};
use std::collections::BTreeMap;

/// An heir that has not answered is asked again after so long.
const ASK_AGAIN: Nanos = Nanos::from_millis(300);

/// Who has not heard enough for so long, and cannot reach a backup, leaves the office to that one: it may reach others.
const PATIENCE: Nanos = Nanos::from_secs(5);

/// Messages of a candidate belong to this session; those in which it would bring copies in sync come after it.
pub const SESSION: u64 = 0;

/// What comes of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not known yet.
    Open,
    /// Its own copy has all that was committed.
    Serve,
    /// This one's is longer, or it may hear more: [`GroupConfig::handed_to`] it is to be proposed.
    HandOver(Member),
}

/// See the module.
#[derive(Debug)]
pub struct Candidate {
    config: GroupConfig,
    since: Nanos,
    asked: BTreeMap<ServerId, Nanos>,
    heard: BTreeMap<ServerId, (Member, (Epoch, Lsn))>,
    /// It proposes to hand the office over.
    proposing: bool,
}

impl Candidate {
    /// The primary of `config` stands for its office.
    pub fn new(now: Nanos, config: GroupConfig) -> Candidate {
        Candidate { config, since: now, asked: BTreeMap::new(), heard: BTreeMap::new(), proposing: false }
    }

    /// Term that it stands for.
    pub fn term(&self) -> Epoch {
        self.config.term
    }

    /// The configuration as it is now, of the same term.
    pub fn reconfigure(&mut self, config: &GroupConfig) {
        assert_eq!(config.term, self.config.term, "another term is another candidate");
        self.config = config.clone();
    }

    /// Whom to ask now, of those that can be `reached`: each that has not answered, itself among them.
    pub fn ask(&mut self, now: Nanos, reached: impl Fn(ServerId) -> bool) -> Vec<ServerId> {
        let heirs = self.config.heirs().map(|heir| heir.server);
        let is_due = |asked: &Nanos| now - *asked >= ASK_AGAIN;
        let mut due: Vec<ServerId> = heirs
            .filter(|server| reached(*server) && !self.heard.contains_key(server))
            .filter(|server| self.asked.get(server).is_none_or(is_due))
            .collect();
        due.sort_unstable();
        due.dedup();
        self.asked.extend(due.iter().map(|server| (*server, now)));
        due
    }

    /// A server has joined the term; its copy goes as far as `reach` says. One that has another volume than the heir had
    /// has nothing to say, nor has one whose copy is damaged. An empty one lost its power before anything of it was durable.
    pub fn opened(&mut self, member: Member, reach: Option<(Epoch, Lsn)>) {
        let Some(reach) = reach else {
            tracing::warn!(region = %self.config.region, server = %member.server, "its copy is damaged, and counts for nothing");
            return;
        };
        if self.config.heirs().any(|heir| heir.has_volume_of(&member)) {
            self.heard.insert(member.server, (member, reach));
        }
    }

    /// Heirs whose volumes were not heard of.
    fn unheard(&self) -> impl Iterator<Item = Member> + '_ {
        let is_heard = |heir: &Member| self.heard.get(&heir.server).is_some_and(|(found, _)| found.has_volume_of(heir));
        self.config.heirs().filter(move |heir| !is_heard(heir))
    }

    /// What is known now. A hand-over is said once, until its proposal has ended.
    pub fn verdict(&mut self, now: Nanos) -> Verdict {
        let me = self.config.primary.expect("a candidate is the primary of its configuration");
        let Some((_, mine)) = self.heard.get(&me.server) else { return Verdict::Open };
        // Who has lived on has followed a term.
        let has_all = |(member, reach): &&(Member, (Epoch, Lsn))| reach.0 > Epoch(0) && self.config.lived_on(*member);
        let lived_on = self.heard.values().filter(has_all).count();
        let is_enough = lived_on >= self.config.must_hear as usize || self.unheard().next().is_none();
        if self.proposing {
            return Verdict::Open;
        }
        if !is_enough && !planted(Bug::ServeUnheard) {
            let unheard = self.config.backups.iter().find(|backup| !self.heard.contains_key(&backup.server));
            return match unheard.filter(|_| now - self.since > PATIENCE).copied() {
                Some(backup) => self.hand_over(backup),
                None => Verdict::Open,
            };
        }
        let longest = self.heard.values().max_by_key(|(member, position)| (*position, self.config.lived_on(*member)));
        let (heir, reach) = longest.expect("its own is known");
        if mine >= reach || planted(Bug::ServeUnheard) {
            return Verdict::Serve;
        }
        let heir = *heir;
        self.hand_over(heir)
    }

    fn hand_over(&mut self, heir: Member) -> Verdict {
        self.proposing = true;
        Verdict::HandOver(heir)
    }

    /// The coordinator answered, or will not. If the office was handed over, another configuration says so.
    pub fn proposal_ended(&mut self) {
        self.proposing = false;
    }
}

#[cfg(test)]
#[path = "candidate_tests.rs"]
mod tests;
