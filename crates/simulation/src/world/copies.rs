//! Copies of a region that are compared by digests of ranges while clients write, as `leeward verify --replicas` does:
//! the primary names a state, the backups are asked, and the primary last. A copy that cannot show the state is not
//! compared.

use super::{NodeId, World, node_of};
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{DigestInstant, Op, OpResult, RangeAnswer, RangeDigest, RangeQuestion};
use leeward_platform::Nanos;

/// How often each region is compared.
const ROUNDS: usize = 2;
/// How long the answer to a question may take, and how often a copy is asked that does not have the LSN yet.
const ANSWER: Nanos = Nanos::from_millis(200);
const MOST_QUESTIONS: usize = 5;
/// Time between the backups' answers and the question to the primary: pairs expire meanwhile.
const BETWEEN: Nanos = Nanos::from_millis(50);

impl World {
    /// Compares the copies of each region that has a primary.
    pub(super) fn compare_copies(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS {
            for config in self.configs() {
                self.compare_copies_of(&config)?;
            }
        }
        Ok(())
    }

    fn compare_copies_of(&mut self, config: &GroupConfig) -> Result<(), String> {
        let Some(primary) = config.primary.map(|primary| node_of(primary.server)) else { return Ok(()) };
        let bounds = self.answer_of(primary, Op::RangeBounds { region: config.region, want_bounds: true });
        let Some(OpResult::RangeBounds { at, bounds }) = bounds else { return Ok(()) };
        let ends: Vec<Option<Bytes>> = bounds.into_iter().map(Some).chain([None]).collect();
        let mut answers = Vec::new();
        for backup in config.backups.iter().map(|backup| node_of(backup.server)) {
            answers.extend(self.digests_of(backup, config, at, &ends).map(|digests| (backup, digests)));
        }
        if answers.is_empty() {
            return Ok(());
        }
        self.advance(self.now + BETWEEN);
        let Some(right) = self.digests_of(primary, config, at, &ends) else { return Ok(()) };
        for (backup, digests) in answers {
            self.compared += 1;
            let differ = ends.iter().zip(right.iter().zip(&digests)).find(|(_, (right, other))| right != other);
            if let Some((end, (right, other))) = differ {
                return Err(format!(
                    "at {} ms the copies of region {} on nodes {primary} and {backup} differ at {at:?} in the range \
                     that ends at {end:?}, and have {} and {} pairs there",
                    self.now.as_millis(),
                    config.region,
                    right.pairs,
                    other.pairs
                ));
            }
        }
        Ok(())
    }

    /// The digests of all ranges of a copy; `None` if it cannot show them.
    fn digests_of(
        &mut self,
        node: NodeId,
        config: &GroupConfig,
        at: DigestInstant,
        ends: &[Option<Bytes>],
    ) -> Option<Vec<RangeDigest>> {
        let (region, start, ends) = (config.region, Bytes::new(), ends.to_vec());
        let question = Box::new(RangeQuestion { region, at, start, ends, so_far: RangeDigest::default() });
        for _ in 0..MOST_QUESTIONS {
            match self.answer_of(node, Op::RangeDigests(question.clone()))? {
                OpResult::RangeDigests(RangeAnswer::Digests { whole, begun: None }) => {
                    let is_whole = whole.len() == question.ends.len() && whole.iter().all(|one| one.damage.is_none());
                    return is_whole.then_some(whole);
                }
                OpResult::RangeDigests(RangeAnswer::NotYet) => self.advance(self.now + ANSWER),
                _ => return None,
            }
        }
        None
    }

    /// What a node answers in time, if it does.
    fn answer_of(&mut self, node: NodeId, op: Op) -> Option<OpResult> {
        if !self.takes_writes(node) {
            return None;
        }
        let token = self.question(node, op);
        let end = self.now + ANSWER;
        while self.questions[&token].is_none() && self.turn(end) {}
        self.questions.remove(&token).flatten()
    }
}
