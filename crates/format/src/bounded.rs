//! Lists whose length is bounded while they are decoded: a claimed length costs no memory before its elements are there, and a
//! list beyond its bound is refused before it is built.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;

/// Elements that there is room for before the first of them is decoded.
const MOST_RESERVED: usize = 256;

/// A list of at most `MOST` elements, for `#[serde(deserialize_with)]`.
pub(crate) fn at_most<'de, const MOST: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct AtMost<T, const MOST: usize>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for AtMost<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MOST} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let Some(claimed) = list.size_hint().filter(|claimed| *claimed <= MOST) else {
                return Err(A::Error::custom(format_args!("more than {MOST} elements in one list")));
            };
            let mut elements = Vec::with_capacity(claimed.min(MOST_RESERVED));
            while let Some(element) = list.next_element()? {
                elements.push(element);
            }
            Ok(elements)
        }
    }
    from.deserialize_seq(AtMost::<T, MOST>(PhantomData))
}

/// [`at_most`], or nothing.
pub(crate) fn optional<'de, const MOST: usize, T, D>(from: D) -> Result<Option<Vec<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct Inner<T, const MOST: usize>(Vec<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Inner<T, MOST> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            at_most::<MOST, T, D>(from).map(Inner)
        }
    }
    Ok(Option::<Inner<T, MOST>>::deserialize(from)?.map(|inner| inner.0))
}
