//! Options that have two values.

/// An option with two values: both values, and their names in text.
macro_rules! either {
    ($type:ident, $what:literal, $one:ident = $its_name:literal, $other:ident = $other_name:literal) => {
        impl $type {
            /// All of them.
            pub const ALL: [$type; 2] = [$type::$one, $type::$other];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $type::$one => $its_name,
                    $type::$other => $other_name,
                })
            }
        }

        impl FromStr for $type {
            type Err = String;
            fn from_str(name: &str) -> Result<$type, String> {
                let known = $type::ALL.into_iter().find(|one| one.to_string() == name);
                known.ok_or_else(|| {
                    format!(concat!("{:?} is ", $what, ": it is ", $its_name, " or ", $other_name), name)
                })
            }
        }
    };
}

pub(super) use either;
