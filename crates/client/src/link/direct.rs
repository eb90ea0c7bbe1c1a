//! A link as the source of direct reads: one-sided reads of the node's memory, and questions about its hash indexes.
//!
//! A question is a request of its own. No operation of a caller is in it, so none waits for its answer, and none fails
//! with it. It is lost with the link.

use super::Link;
use crate::ring::Ends;
use leeward_fabric::{ReadNow, ReadableDescriptor};
use leeward_format::RegionId;
use leeward_format::op::{HashIndexQuestion, Op, Request};
use leeward_format::table::TableName;

/// Most questions of a link without an answer.
const MOST_QUESTIONS: usize = 64;
/// Most bytes of a question besides its lines.
const QUESTION_BYTES: usize = 512;
/// Most bytes of a line in it.
const LINE_BYTES: usize = 5;

impl Link {
    /// Whether this process can read the node's memory by itself, as far as the link knows: `None` before the rings are
    /// open.
    pub(crate) fn reads_now(&self) -> Option<bool> {
        let rings = self.rings.as_ref()?;
        rings.ends.as_ref().is_some_and(Ends::is_open).then_some(rings.reads_now)
    }

    /// Copies bytes of a memory of the node in this thread, if it is mapped.
    #[inline]
    pub(crate) fn read_now(&self, memory: &ReadableDescriptor, offset: u64, bytes: &mut [u8]) -> ReadNow {
        match self.rings.as_ref().and_then(|rings| rings.ends.as_ref()) {
            Some(ends) => ends.read_now(memory, offset, bytes),
            None => ReadNow::NotMapped,
        }
    }

    /// Posts a read that maps a memory of the node, which has a part of the region's index.
    pub(crate) fn map_memory(&mut self, memory: &ReadableDescriptor, region: RegionId) {
        if let Some(ends) = self.rings.as_mut().and_then(|rings| rings.open()) {
            ends.map(memory, region);
        }
    }

    /// Asks the node about the index of a region. Returns the number of the question; `None` if there are too many.
    pub(crate) fn ask_about_index(&mut self, table: &TableName, mut question: HashIndexQuestion) -> Option<u64> {
        let most = self.rings.as_mut().and_then(|rings| rings.open())?.most_request();
        if self.index_questions.len() >= MOST_QUESTIONS {
            return None;
        }
        question.read.truncate(most.saturating_sub(QUESTION_BYTES) / LINE_BYTES);
        let id = self.next_id;
        self.next_id += 1;
        self.index_questions.push((id, question.region));
        let ops = vec![Op::HashIndex(Box::new(question))];
        self.ask(Request::Ops { id, direct: true, table: table.clone(), ops });
        Some(id)
    }

    /// The region that the question `id` was about, which was answered. `None` if there is no such question.
    pub(crate) fn answered_about_index(&mut self, id: u64) -> Option<RegionId> {
        let at = self.index_questions.iter().position(|(question, _)| *question == id)?;
        Some(self.index_questions.swap_remove(at).1)
    }
}
