//! The line in this node's memory that shows the safe LSN of a region that it serves: [`crate::safe_lsn_lines`].

use super::Serving;
use super::direct_reads::UNUSED;
use leeward_format::cluster::Reads;
use leeward_format::control::SafeLsnOf;
use leeward_format::safe_lsn::SafeLsnLineGrant;
use leeward_platform::Nanos;
use leeward_platform::planted::{Bug, planted};

impl Serving {
    /// The safe LSN that the primary publishes now, if any.
    pub fn publish_safe_lsn(&self, now: Nanos) -> Option<SafeLsnOf> {
        let is_wanted = self.primary().options().reads.stale != Reads::Primary;
        is_wanted.then(|| self.safe_lsn(now)).flatten()
    }

    /// The safe LSN, if the primary may name one.
    pub fn safe_lsn(&self, now: Nanos) -> Option<SafeLsnOf> {
        let holds_lease = || self.primary().holds_lease(now) || planted(Bug::PublishSafeLsnWithoutLease);
        let epoch = self.primary().config().epoch;
        let may_name_one = self.is_open() && self.is_active() && holds_lease();
        may_name_one.then_some(SafeLsnOf { region: self.id(), epoch, lsn: self.acknowledged() })
    }

    /// A backup asks for the right to read the region's line. It is the moment at which the answer leaves.
    pub fn grant_safe_lsn_line(&mut self, now: Nanos) -> Option<SafeLsnLineGrant> {
        let epoch = self.primary.config().epoch;
        let direct = &mut self.direct_reads;
        if direct.quiesced_in == Some(epoch) || direct.line.as_ref().is_some_and(|line| line.epoch != epoch) {
            return None;
        }
        if direct.line.is_none() {
            direct.line = direct.lines.open(now, (self.region.id(), epoch));
        }
        direct.line.as_mut()?.asked = now;
        self.extend_direct_reads(now);
        self.direct_reads.line.as_ref().map(|line| line.grant(now))
    }

    /// Shows what is acknowledged by now in the region's line.
    pub(super) fn show_safe_lsn(&mut self) {
        if let Some(line) = &mut self.direct_reads.line {
            line.show(self.answers.acknowledged(), self.wall.now());
        }
    }

    /// Extends the region's line to this instant of this node's clock.
    pub(super) fn extend_safe_lsn_line(&mut self, until: Nanos) {
        if let Some(line) = &mut self.direct_reads.line {
            line.extend(until);
            self.show_safe_lsn();
        }
    }

    /// Whether the region's line is open and not wanted, or not right, any more.
    pub(super) fn is_safe_lsn_line_over(&self, now: Nanos) -> bool {
        let epoch = self.primary.config().epoch;
        self.direct_reads.line.as_ref().is_some_and(|line| now - line.asked > UNUSED || line.epoch != epoch)
    }
}
