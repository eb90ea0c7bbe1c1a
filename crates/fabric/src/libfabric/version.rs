//! Versions of libfabric: which of them are used, and which may share memory. Pure.

use std::fmt;

/// Oldest version that has what is used here.
const OLDEST: Version = Version { major: 1, minor: 17, revision: 0 };

/// A version of the library.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Version {
    pub(super) major: u8,
    pub(super) minor: u8,
    pub(super) revision: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.revision)
    }
}

impl Version {
    /// The version of a library that answers this number, major and minor in 16 bits each, and this text, such as
    /// `1.18.1rc1`. Only the text has the revision; in a text that does not fit the number it is 0.
    pub(super) fn of(number: u32, text: &str) -> Version {
        let (major, minor) = ((number >> 16).min(255) as u8, (number & 0xffff).min(255) as u8);
        let rest = text.strip_prefix(&format!("{major}.{minor}."));
        let digits = rest.map_or("", |rest| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
        Version { major, minor, revision: digits.parse().unwrap_or(0) }
    }

    /// Whether this version is used.
    ///
    /// # Errors
    /// It is too old. The text says what to do.
    pub(super) fn check(self) -> Result<(), String> {
        if self >= OLDEST {
            return Ok(());
        }
        Err(format!(
            "libfabric of this machine has version {self}: install 1.17 or later (Debian 12 has it), or \
             use another fabric"
        ))
    }

    /// Whether this provider of this version is used.
    ///
    /// # Errors
    /// It has an error that makes it unusable. The text says what to do.
    pub(super) fn check_provider(self, provider: &str) -> Result<(), String> {
        let never_sleeps = Version { major: 1, minor: 18, revision: 0 };
        if self == never_sleeps && provider.contains("tcp") {
            return Err(format!(
                "provider {provider} of libfabric {self} lets no thread sleep, so that it takes a whole core and is 10 to \
                 100 times slower: install 1.18.1 or later, or use another provider or fabric"
            ));
        }
        Ok(())
    }

    /// The version of the memory that processes of one host share, in the low 24 bits.
    pub(super) fn number(self) -> u32 {
        u32::from_be_bytes([0, self.major, self.minor, self.revision])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(major: u8, minor: u8, revision: u8) -> Version {
        Version { major, minor, revision }
    }

    #[test]
    fn the_revision_is_that_of_the_text_if_it_fits() {
        assert_eq!(Version::of(1 << 16 | 17, "1.17.0"), version(1, 17, 0));
        assert_eq!(Version::of(1 << 16 | 18, "1.18.1"), version(1, 18, 1));
        assert_eq!(Version::of(2 << 16, "2.0.3rc1"), version(2, 0, 3));
        for odd in ["", "1.18", "1.18.", "1.18.x", "1.17.9", "1.18.1000", "11.18.1"] {
            assert_eq!(Version::of(1 << 16 | 18, odd), version(1, 18, 0), "{odd}");
        }
        assert_eq!(Version::of(u32::MAX, ""), version(255, 255, 0));
    }

    #[test]
    fn a_library_that_is_too_old_is_named_with_the_one_to_install() {
        for old in [version(1, 13, 2), version(1, 16, 1), version(0, 99, 0)] {
            let error = old.check().expect_err("it is too old");
            assert!(error.contains(&old.to_string()) && error.contains("install 1.17 or later"), "{error}");
        }
        for new in [version(1, 17, 0), version(1, 18, 0), version(1, 22, 0), version(2, 0, 0)] {
            assert_eq!(new.check(), Ok(()));
        }
    }

    #[test]
    fn a_provider_that_lets_no_thread_sleep_is_refused() {
        for provider in ["tcp", "tcp;ofi_rxm"] {
            let error = version(1, 18, 0).check_provider(provider).expect_err("it burns a core");
            assert!(error.contains("1.18.0") && error.contains("install 1.18.1 or later"), "{error}");
        }
        assert_eq!(version(1, 18, 0).check_provider("verbs;ofi_rxm"), Ok(()));
        for good in [version(1, 17, 0), version(1, 18, 1), version(1, 18, 2), version(1, 19, 0)] {
            assert_eq!(good.check_provider("tcp"), Ok(()));
        }
    }
}
