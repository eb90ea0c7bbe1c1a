//! Where a server stands, so that copies of a region can be kept apart: labels with values from coarse to fine, such as
//! `zone=a,host=h7`. What fails together shares a prefix.
//!
//! Plain data; any thread.

use super::RegionMap;
use crate::{RegionId, ServerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Where a server stands; empty if nobody has said. Two servers are as close as the number of leading labels that are the
/// same in both, with the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Location(Vec<(String, String)>);

impl Location {
    /// Labels that a location has at most.
    pub const MAX_LABELS: usize = 8;
    /// Bytes of a label, and of a value, at most.
    const MAX_BYTES: usize = 64;

    /// Whether nobody has said where the server stands.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many leading labels are the same in both: 0 if a failure of one place hits only one of the two.
    pub fn closeness(&self, other: &Location) -> usize {
        self.0.iter().zip(&other.0).take_while(|(mine, theirs)| mine == theirs).count()
    }

    /// The place that this location and the `other` are both in.
    #[must_use]
    pub fn common(&self, other: &Location) -> Location {
        Location(self.0[..self.closeness(other)].to_vec())
    }
}

/// Copies of regions that are closer together than all servers are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPlaces {
    /// The regions of which a place has two copies or more, by place.
    pub regions: BTreeMap<Location, Vec<RegionId>>,
    /// Servers that do not say where they stand, while others do.
    pub unplaced: Vec<ServerId>,
}

impl RegionMap {
    /// Where copies of a region share a place that another live server is not in.
    pub fn shared_places(&self) -> SharedPlaces {
        let locations: BTreeMap<ServerId, &Location> =
            self.servers.iter().map(|info| (info.member.server, &info.location)).collect();
        let mut shared = SharedPlaces::default();
        let Some(all) = locations
            .values()
            .filter(|one| !one.is_empty())
            .map(|one| (*one).clone())
            .reduce(|all, one| all.common(&one))
        else {
            return shared;
        };
        shared.unplaced =
            locations.iter().filter(|(_, location)| location.is_empty()).map(|(server, _)| *server).collect();
        for config in &self.regions {
            let places: Vec<_> = config.members().filter_map(|member| locations.get(&member.server)).collect();
            let pairs = (1..places.len()).flat_map(|index| places[..index].iter().map(move |one| (index, one)));
            let common: BTreeSet<Location> = pairs.map(|(index, one)| one.common(places[index])).collect();
            for place in common.into_iter().filter(|place| place.0.len() > all.0.len()) {
                shared.regions.entry(place).or_default().push(config.region);
            }
        }
        shared
    }
}

impl SharedPlaces {
    /// What an operator should know of it, a sentence each.
    pub fn explain(&self) -> Vec<String> {
        let together = |(place, regions): (&Location, &Vec<RegionId>)| {
            format!("two or more copies of these regions are in {place}: {}", few(regions))
        };
        let mut sentences: Vec<String> = self.regions.iter().map(together).collect();
        if !self.unplaced.is_empty() {
            let servers = few(&self.unplaced);
            sentences.push(format!(
                "these servers have no location, and others have one: {servers}. Set `location` on each node"
            ));
        }
        sentences
    }
}

/// The first of these, and how many there are if those are not all.
fn few(all: &[impl Display]) -> String {
    const NAMED: usize = 10;
    let named: Vec<String> = all.iter().take(NAMED).map(ToString::to_string).collect();
    match all.len() {
        ..=NAMED => named.join(", "),
        more => format!("{}, ... ({more} in all)", named.join(", ")),
    }
}

impl Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (label, value)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{label}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Location, String> {
        let is_word = |word: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            (1..=Location::MAX_BYTES).contains(&word.len()) && word.bytes().all(is_letter)
        };
        let mut labels: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let pair = part.split_once('=').filter(|(label, value)| is_word(label) && is_word(value));
            let Some((label, value)) = pair else {
                return Err(format!(
                    "{part:?} is not LABEL=VALUE, each of 1 to {} letters, digits and -_.",
                    Location::MAX_BYTES
                ));
            };
            if labels.iter().any(|(known, _)| known == label) {
                return Err(format!("the label {label} is given twice"));
            }
            labels.push((label.to_owned(), value.to_owned()));
        }
        match labels.len() {
            ..=Location::MAX_LABELS => Ok(Location(labels)),
            more => Err(format!("it has {more} labels: {} at most", Location::MAX_LABELS)),
        }
    }
}

impl TryFrom<String> for Location {
    type Error = String;

    fn try_from(text: String) -> Result<Location, String> {
        text.parse()
    }
}

impl From<Location> for String {
    fn from(location: Location) -> String {
        location.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{GroupConfig, Member, ServerInfo};
    use crate::{Incarnation, VolumeId};

    #[test]
    fn two_locations_are_as_close_as_their_first_labels_are_the_same() {
        let location = |text: &str| text.parse::<Location>().unwrap();
        let one = location("zone=a,rack=7,host=h1");
        for (other, close, common) in [
            ("zone=a,rack=7,host=h1", 3, "zone=a,rack=7,host=h1"),
            ("zone=a,rack=7,host=h2", 2, "zone=a,rack=7"),
            ("zone=a", 1, "zone=a"),
            ("zone=b,rack=7,host=h1", 0, ""),
            ("rack=7,zone=a", 0, ""),
            ("", 0, ""),
        ] {
            let other = location(other);
            assert_eq!((one.closeness(&other), other.closeness(&one)), (close, close), "{other}");
            assert_eq!(one.common(&other).to_string(), common);
        }
        assert_eq!(one.to_string(), "zone=a,rack=7,host=h1");
        assert!(location("").is_empty());
    }

    #[test]
    fn places_that_have_two_copies_are_named_unless_all_servers_share_them() {
        let member = |server| Member { server: ServerId(server), volume: VolumeId(1), incarnation: Incarnation(1) };
        let server = |(id, location): (u32, &str)| ServerInfo {
            location: location.parse().unwrap(),
            ..ServerInfo::of(member(id))
        };
        let region = |(id, servers): (u32, &[u32])| GroupConfig {
            primary: Some(member(servers[0])),
            backups: servers[1..].iter().map(|server| member(*server)).collect(),
            ..GroupConfig::unassigned(RegionId(id), "default")
        };
        let servers = [(1, "dc=x,zone=a,host=1"), (2, "dc=x,zone=a,host=2"), (3, "dc=x,zone=b"), (4, "dc=x,zone=b")];
        let regions: [(u32, &[u32]); 3] = [(1, &[1, 3]), (2, &[1, 2, 3]), (3, &[2, 1, 4, 3])];
        let mut map = RegionMap {
            servers: servers.map(server).into(),
            regions: regions.map(region).into(),
            ..RegionMap::default()
        };
        assert_eq!(
            map.shared_places().explain(),
            [
                "two or more copies of these regions are in dc=x,zone=a: 2, 3",
                "two or more copies of these regions are in dc=x,zone=b: 3"
            ]
        );
        map.servers.push(server((5, "")));
        let told = map.shared_places().explain().pop().unwrap();
        assert!(told.contains("these servers have no location, and others have one: 5. Set"), "{told}");
        map.servers.iter_mut().for_each(|info| info.location = Location::default());
        assert_eq!(map.shared_places(), SharedPlaces::default());
        assert_eq!(few(&(1..=12).collect::<Vec<_>>()), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ... (12 in all)");
    }

    #[test]
    fn a_location_that_is_none_is_refused_with_what_it_should_be() {
        let long = format!("zone={}", "a".repeat(65));
        let many = (0..9).map(|label| format!("l{label}=x")).collect::<Vec<_>>().join(",");
        for (text, why) in [
            ("zone", "\"zone\" is not LABEL=VALUE"),
            ("zone=", "is not LABEL=VALUE"),
            ("=a", "is not LABEL=VALUE"),
            ("zone=a,", "\"\" is not LABEL=VALUE"),
            ("zone=a b", "is not LABEL=VALUE"),
            ("zone=a,zone=b", "the label zone is given twice"),
            (&long, "is not LABEL=VALUE"),
            (&many, "it has 9 labels: 8 at most"),
        ] {
            let refused = text.parse::<Location>().unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
            let bytes = postcard::to_stdvec(text).unwrap();
            assert!(postcard::from_bytes::<Location>(&bytes).is_err(), "{text}");
        }
    }
}
