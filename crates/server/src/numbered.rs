//! A queue of numbered items: the first that is pushed is 0, and each other item follows the one before it.

use std::collections::VecDeque;

/// The items that were pushed and have not left. They leave at the front.
pub(crate) struct Numbered<T> {
    items: VecDeque<T>,
    /// Number of the first item.
    first: u64,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { items: VecDeque::new(), first: 0 }
    }
}

impl<T> Numbered<T> {
    /// Number of the first item, or of the next that is pushed if there is none.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Number of the next item that is pushed.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.items.len() as u64
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds an item. Returns its number.
    pub(crate) fn push(&mut self, item: T) -> u64 {
        self.items.push_back(item);
        self.end() - 1
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.items.get_mut(number.checked_sub(self.first)? as usize)
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.items.front()
    }

    pub(crate) fn front_mut(&mut self) -> Option<&mut T> {
        self.items.front_mut()
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.first += 1;
        Some(item)
    }

    /// Bytes that the queue itself takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.items.capacity() * size_of::<T>()
    }

    /// Frees the room for more than so many items, if there is none now.
    pub(crate) fn shrink(&mut self, kept: usize) {
        if self.items.is_empty() && self.items.capacity() > kept {
            self.items = VecDeque::new();
        }
    }
}

impl<T> Numbered<Option<T>> {
    /// Takes an item out of turn, if it is still there and `is_due`. Its place leaves with those before it.
    pub(crate) fn take_if(&mut self, number: u64, is_due: impl FnOnce(&mut T) -> bool) -> Option<T> {
        let item = self.get_mut(number)?.take_if(is_due)?;
        while self.front().is_some_and(Option::is_none) {
            self.pop_front();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_numbers_and_leave_in_order() {
        let mut queue = Numbered::default();
        assert_eq!(["a", "b", "c"].map(|item| queue.push(Some(item))), [0, 1, 2]);
        assert_eq!(queue.take_if(1, |_| false), None);
        assert_eq!(queue.take_if(1, |_| true), Some("b"));
        assert_eq!((queue.first(), queue.len(), queue.take_if(1, |_| true)), (0, 3, None));
        assert_eq!(queue.take_if(0, |_| true), Some("a"));
        assert_eq!((queue.first(), queue.end(), queue.len(), queue.get_mut(1)), (2, 3, 1, None));
        assert_eq!((queue.push(None), queue.pop_front(), queue.first()), (3, Some(Some("c")), 3));
    }
}
