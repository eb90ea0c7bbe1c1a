//! The only door to the machine: disk, clock and randomness, real and simulated; secrets that an operator gives; CPU
//! accounting; memory in blocks; backoff; places for unidentified connections.
//!
//! All code above uses these traits, so the same code runs on a device and in the simulator. Nothing here knows of a
//! store's keys or of regions. All of it may be called from any thread.
#![deny(unsafe_code)]

pub mod backoff;
pub mod cpu;
pub mod disk;
pub mod entropy;
#[expect(unsafe_code, reason = "memory that is the system's, and no allocator's")]
pub mod memory;
pub mod planted;
pub mod rng;
pub mod secrets;
pub mod time;
pub mod unidentified;

pub use backoff::Backoff;
pub use disk::{AppendBuffer, Appender, DeviceCounters, Disk, File, RealDisk, SimDisk};
pub use entropy::Entropy;
pub use memory::{Block, Pool};
pub use planted::{Bug, planted};
pub use rng::Rng;
pub use secrets::Secrets;
pub use time::{BootClock, Clock, Nanos};
pub use unidentified::Unidentified;
