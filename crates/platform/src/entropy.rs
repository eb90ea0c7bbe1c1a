//! Random bytes that no one can guess: for keys and nonces. In tests and simulations they come from a seed instead.

use crate::Rng;
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// A source of random bytes. Any thread may use it.
#[derive(Debug)]
pub struct Entropy(Source);

#[derive(Debug)]
enum Source {
    System,
    Seeded(Mutex<Rng>),
}

impl Entropy {
    /// That of the operating system.
    pub fn system() -> Entropy {
        Entropy(Source::System)
    }

    /// The same bytes for the same seed: for simulations, never for secrets.
    pub fn seeded(seed: u64) -> Entropy {
        Entropy(Source::Seeded(Mutex::new(Rng::new(seed))))
    }

    /// Fills `bytes`.
    ///
    /// # Errors
    /// The operating system has none.
    pub fn fill(&self, mut bytes: &mut [u8]) -> io::Result<()> {
        match &self.0 {
            Source::Seeded(rng) => rng.lock().fill(bytes),
            Source::System => {
                while !bytes.is_empty() {
                    match getrandom(&mut *bytes, GetRandomFlags::empty()) {
                        Ok(filled) => bytes = &mut bytes[filled..],
                        Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_never_repeats_itself_and_a_seed_always_does() {
        let drawn = |entropy: Entropy| {
            let mut bytes = [0; 32];
            entropy.fill(&mut bytes).unwrap();
            bytes
        };
        assert_ne!(drawn(Entropy::system()), drawn(Entropy::system()));
        assert_eq!(drawn(Entropy::seeded(1)), drawn(Entropy::seeded(1)));
        assert_ne!(drawn(Entropy::seeded(1)), drawn(Entropy::seeded(2)));
    }
}
