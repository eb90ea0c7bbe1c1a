//! How many operations of one connection may be in flight.
//!
//! The size of a reply is not known in advance, and a pipeline of a thousand reads may answer a gigabyte. The window
//! opens while replies are small. It allows as many operations in flight as fit [`REPLY_BUDGET_BYTES`], if all replies
//! are as large as the largest recent one.

/// Bytes that the replies in flight may take.
const REPLY_BUDGET_BYTES: usize = 16 * 1024 * 1024;
/// Operations in flight before any reply was seen.
const FIRST: usize = 64;
/// Least operations in flight, however large the replies are, if memory allows.
const LEAST: usize = 16;
/// Most operations in flight, however small the replies are.
const MOST: usize = 1024;

/// The window of one connection.
#[derive(Debug)]
pub(super) struct Window {
    /// Bytes that the replies in flight may take.
    budget: usize,
    in_flight: usize,
    /// Size of the largest reply. It fades with each later reply.
    largest: usize,
}

impl Window {
    /// A window whose replies in flight take no more than `most` bytes, or are one large reply.
    pub(super) fn within(most: usize) -> Window {
        Window { budget: REPLY_BUDGET_BYTES.min(most), in_flight: 0, largest: 0 }
    }

    /// Whether another operation may be submitted.
    pub(super) fn is_open(&self) -> bool {
        let limit = match self.largest {
            0 => FIRST,
            largest => (self.budget / largest).clamp((self.budget >> 20).clamp(1, LEAST), MOST),
        };
        self.in_flight < limit
    }

    /// Counts an operation that was submitted.
    pub(super) fn submitted(&mut self) {
        self.in_flight += 1;
    }

    /// Counts an operation as answered, with `bytes` of keys and values.
    pub(super) fn answered(&mut self, bytes: usize) {
        self.in_flight -= 1;
        self.largest = (self.largest - self.largest / 16).max(bytes).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(window: &mut Window) -> usize {
        let mut count = 0;
        while window.is_open() {
            window.submitted();
            count += 1;
        }
        (0..count).for_each(|_| window.in_flight -= 1);
        count
    }

    #[test]
    fn the_window_follows_the_size_of_replies() {
        let mut window = Window::within(usize::MAX);
        assert_eq!(room(&mut window), FIRST);
        window.submitted();
        window.answered(10);
        assert_eq!(room(&mut window), MOST);
        window.submitted();
        window.answered(1 << 20);
        assert_eq!(room(&mut window), LEAST);
        for _ in 0..200 {
            window.submitted();
            window.answered(10);
        }
        assert_eq!(room(&mut window), MOST);
    }

    #[test]
    fn a_window_is_small_where_memory_is() {
        let mut window = Window::within(4 << 20);
        window.submitted();
        window.answered(1 << 20);
        assert_eq!(room(&mut window), 4);
        let mut window = Window::within(1 << 10);
        window.submitted();
        window.answered(1 << 20);
        assert_eq!(room(&mut window), 1);
    }
}
