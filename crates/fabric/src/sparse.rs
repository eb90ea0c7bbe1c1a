//! Zeroed memory on the heap. Its pages are allocated when they are first written, and can be given back.
//!
//! Any number of threads copy in and out at the same time ([`words`]); allocating pages and giving them back is
//! exclusive. Callers check that a range is within the memory.

use crate::{
    PAGE_BYTES,
    words::{self, WORD},
};
use std::{collections::BTreeMap, ops::Range, sync::atomic::AtomicU64};

/// Zeroed memory whose pages come with the first write.
pub(crate) struct Sparse {
    len: usize,
    /// By page number. The last one may be shorter.
    pages: BTreeMap<usize, Box<[AtomicU64]>>,
}

/// Splits a range by pages: for each part the page's number, the offset on the page, and the part of the range.
fn parts(offset: usize, len: usize) -> impl Iterator<Item = (usize, usize, Range<usize>)> {
    let end = offset + len;
    std::iter::successors(Some(offset), |at| Some((at / PAGE_BYTES + 1) * PAGE_BYTES))
        .take_while(move |at| *at < end)
        .map(move |at| {
            let page = at / PAGE_BYTES;
            (page, at % PAGE_BYTES, at - offset..end.min((page + 1) * PAGE_BYTES) - offset)
        })
}

impl Sparse {
    /// `len` bytes, without allocated pages.
    pub(crate) fn new(len: usize) -> Sparse {
        Sparse { len, pages: BTreeMap::new() }
    }

    /// Whether every page of a range is allocated.
    pub(crate) fn has(&self, offset: usize, len: usize) -> bool {
        parts(offset, len).all(|(page, ..)| self.pages.contains_key(&page))
    }

    /// Allocates the missing pages of a range.
    pub(crate) fn take(&mut self, offset: usize, len: usize) {
        for (page, ..) in parts(offset, len) {
            let bytes = (self.len - page * PAGE_BYTES).min(PAGE_BYTES);
            self.pages.entry(page).or_insert_with(|| words::zeroed(bytes));
        }
    }

    /// Gives back the pages that are wholly in `range`. A shorter last page counts as whole if `range` reaches the end
    /// of the memory.
    pub(crate) fn release(&mut self, range: Range<usize>) {
        let last = if range.end == self.len { self.len.div_ceil(PAGE_BYTES) } else { range.end / PAGE_BYTES };
        let first = range.start.div_ceil(PAGE_BYTES);
        if first < last {
            let mut behind = self.pages.split_off(&first);
            self.pages.append(&mut behind.split_off(&last));
        }
    }

    /// Copies `bytes` to `offset`. The pages must be allocated.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        for (page, at, part) in parts(offset, bytes.len()) {
            words::copy_in(&self.pages[&page], at, &bytes[part]);
        }
    }

    /// Copies `bytes.len()` bytes from `offset`.
    pub(crate) fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        for (page, at, part) in parts(offset, bytes.len()) {
            match self.pages.get(&page) {
                Some(page) => words::copy_out(page, at, &mut bytes[part]),
                None => bytes[part].fill(0),
            }
        }
    }

    /// The word at `offset`.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(WORD), "a word's offset is a multiple of 8, this is {offset}");
        self.pages.get(&(offset / PAGE_BYTES)).map_or(0, |page| words::load(page, offset % PAGE_BYTES))
    }

    /// Stores the word at `offset`. Its page must be allocated.
    pub(crate) fn store(&self, offset: usize, value: u64) {
        words::store(&self.pages[&(offset / PAGE_BYTES)], offset % PAGE_BYTES, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_what_was_written_and_as_zeroes_where_pages_were_given_back() {
        let len = 3 * PAGE_BYTES + 20;
        let mut sparse = Sparse::new(len);
        let mut model = vec![0; len];
        let check = |sparse: &Sparse, model: &[u8]| {
            let mut found = vec![9; len - 1];
            sparse.copy_out(1, &mut found);
            assert!(found == model[1..]);
        };
        for (offset, bytes) in [(4090, 10), (0, 1), (8000, 4308), (12_300, 8), (2, 0)] {
            let new: Vec<u8> = (0..bytes).map(|i| (offset + i) as u8 | 1).collect();
            assert!(bytes == 0 || offset != 8000 || !sparse.has(offset, bytes));
            sparse.take(offset, bytes);
            sparse.copy_in(offset, &new);
            model[offset..offset + bytes].copy_from_slice(&new);
            check(&sparse, &model);
        }
        sparse.release(1..2 * PAGE_BYTES + 1);
        model[PAGE_BYTES..2 * PAGE_BYTES].fill(0);
        check(&sparse, &model);
        assert_eq!(sparse.pages.len(), 3);
        sparse.release(2 * PAGE_BYTES..len);
        model[2 * PAGE_BYTES..].fill(0);
        check(&sparse, &model);
        assert_eq!((sparse.pages.len(), sparse.load(12_296)), (1, 0));
    }
}
