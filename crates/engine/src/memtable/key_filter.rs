//! A Bloom filter of the keys of an L0: a look-up of a key that is not in the L0 costs no walk down the tree. Most keys
//! that are read but not written are not in it.
//!
//! It grows in layers, each four times as large as the one before; a key is added to the last. The bits of a key lie in
//! one word of a layer. With 16 bits a key, four of them set, about one in fifty absent keys passes. If the number of
//! keys is known beforehand, the first layer has room for all of them.
//!
//! One writer at a time; readers run in parallel. A reader that has seen a `Release` store made after
//! [`KeyFilter::add`] finds the key.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Keys of the first layer.
const FIRST_KEYS: usize = 1 << 10;
/// Enough for a thousand million keys.
const LAYERS: usize = 11;
const KEYS_PER_WORD: usize = 4;

/// Words of a layer, a power of two.
type Layer = Box<[AtomicU64]>;

#[derive(Default)]
pub(super) struct KeyFilter {
    layers: [OnceLock<Layer>; LAYERS],
    /// Number of smaller layers that it begins without.
    skipped: usize,
    /// Keys that were added, or for which the skipped layers have room.
    keys: AtomicUsize,
    memory_bytes: AtomicUsize,
}

impl KeyFilter {
    /// An empty one whose first layer has room for `keys` keys.
    pub(super) fn for_keys(keys: usize) -> KeyFilter {
        let skipped = (0..LAYERS - 1).find(|layer| keys <= keys_of(*layer)).unwrap_or(LAYERS - 1);
        let keys = AtomicUsize::new((0..skipped).map(keys_of).sum());
        KeyFilter { skipped, keys, ..KeyFilter::default() }
    }

    /// Adds the key of this hash. One writer at a time.
    #[inline]
    pub(super) fn add(&self, hash: u64) {
        if self.may_contain(hash) {
            return;
        }
        let keys = self.keys.load(Relaxed);
        self.keys.store(keys + 1, Relaxed);
        let size = layer_of(keys);
        let layer = self.layers[size - self.skipped].get_or_init(|| self.new_layer(size));
        let word = word_of(layer, hash);
        word.store(word.load(Relaxed) | bits_of(hash), Relaxed);
    }

    /// Whether a key of this hash may have been added; `false` is certain.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let bits = bits_of(hash);
        let mut layers = self.layers.iter().map_while(OnceLock::get);
        layers.any(|layer| word_of(layer, hash).load(Relaxed) & bits == bits)
    }

    /// Memory that it has, in bytes.
    #[inline]
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes.load(Relaxed)
    }

    #[cold]
    fn new_layer(&self, layer: usize) -> Layer {
        let words = keys_of(layer) / KEYS_PER_WORD;
        self.memory_bytes.fetch_add(words * size_of::<AtomicU64>(), Relaxed);
        (0..words).map(|_| AtomicU64::new(0)).collect()
    }
}

/// Keys for which a layer has room.
const fn keys_of(layer: usize) -> usize {
    FIRST_KEYS << (2 * layer)
}

/// The layer of a key after `keys` others: layers before `i` have room for a third of `4^i` times the first.
#[inline]
fn layer_of(keys: usize) -> usize {
    let thirds = keys / FIRST_KEYS * 3 + 1;
    (thirds.ilog2() as usize / 2).min(LAYERS - 1)
}

#[inline]
fn word_of(layer: &Layer, hash: u64) -> &AtomicU64 {
    &layer[(hash >> 24) as usize & (layer.len() - 1)]
}

/// Four bits, from the part of the hash that does not choose the word.
#[inline]
fn bits_of(hash: u64) -> u64 {
    (0..4).fold(0, |bits, i| bits | 1 << ((hash >> (6 * i)) & 63))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leeward_format::filter;

    #[test]
    fn it_denies_no_key_and_few_others() {
        let keys: u64 = if cfg!(miri) { 1100 } else { 100_000 };
        let (known, hash) = (KeyFilter::default(), |n: u64| filter::hash(&n.to_be_bytes()));
        assert!(!known.may_contain(hash(0)) && known.memory_bytes() == 0);
        for n in 0..keys {
            known.add(hash(n));
            assert!(known.may_contain(hash(n)));
        }
        assert!((0..keys).all(|n| known.may_contain(hash(n))));
        let passed = (keys..2 * keys).filter(|n| known.may_contain(hash(*n))).count() as u64;
        assert!(passed * 40 < keys, "{passed} of {keys}");
        let memory = known.memory_bytes();
        assert!(cfg!(miri) || memory as u64 <= 8 * keys, "{memory}");
        (0..keys).for_each(|n| known.add(hash(n)));
        assert_eq!(known.memory_bytes(), memory, "a key that is there takes no more");
    }

    #[test]
    fn one_made_for_a_number_of_keys_has_one_layer_and_grows_beyond_it() {
        let hash = |n: u64| filter::hash(&n.to_be_bytes());
        for (expected, bytes) in [(0, 2 << 10), (1024, 2 << 10), (1025, 8 << 10), (4096, 8 << 10)] {
            let known = KeyFilter::for_keys(expected as usize);
            (0..expected).for_each(|n| known.add(hash(n)));
            assert!((0..expected).all(|n| known.may_contain(hash(n))));
            assert_eq!(known.memory_bytes(), if expected == 0 { 0 } else { bytes }, "{expected}");
            (0..8192).for_each(|n| known.add(hash(n)));
            assert!((0..8192).all(|n| known.may_contain(hash(n))));
            assert!(known.memory_bytes() > bytes, "{expected}");
        }
    }

    #[test]
    fn layers_follow_each_other_when_they_are_full() {
        assert_eq!(layer_of(0), 0);
        let mut keys = 0;
        for layer in 0..LAYERS {
            assert_eq!((layer_of(keys), layer_of(keys + (FIRST_KEYS << (2 * layer)) - 1)), (layer, layer));
            keys += FIRST_KEYS << (2 * layer);
        }
        assert_eq!(layer_of(usize::MAX / 4), LAYERS - 1);
    }
}
