//! A map whose values are shared in memory, encoded as if they were not.

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, Arc<V>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut entries = serializer.serialize_map(Some(map.len()))?;
    map.iter().try_for_each(|(key, value)| entries.serialize_entry(key, &**value))?;
    entries.end()
}

pub(super) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, Arc<V>>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let map = BTreeMap::<K, V>::deserialize(deserializer)?;
    Ok(map.into_iter().map(|(key, value)| (key, Arc::new(value))).collect())
}
