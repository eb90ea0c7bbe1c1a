//! Pages of several regions against one sorted map.

use super::*;
use crate::partition::Partition;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Map = BTreeMap<Bytes, Bytes>;

/// As a region answers: `most` entries at most, and where it continues.
fn scan(map: &Map, start: &Bytes, end: Option<&Bytes>, most: usize, reverse: bool) -> Page {
    let inside = |key: &Bytes| key >= start && end.is_none_or(|end| key < end);
    let mut all: Vec<(Bytes, Bytes)> =
        map.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    if reverse {
        all.reverse();
    }
    let next = all.get(most).map(|(key, _)| key.clone());
    all.truncate(most);
    let resume = if reverse { next.and_then(|_| all.last().map(|(key, _)| key.clone())) } else { next };
    Page { entries: all, resume }
}

/// Page by page, as clients scan.
fn merged(
    regions: &[Map],
    mut range: (Bytes, Option<Bytes>),
    limit: usize,
    most: &[usize],
    reverse: bool,
) -> Vec<(Bytes, Bytes)> {
    let mut found = Vec::new();
    for turn in 0.. {
        let parts = regions
            .iter()
            .enumerate()
            .map(|(at, map)| scan(map, &range.0, range.1.as_ref(), most[(at + turn) % most.len()], reverse));
        let parts: Vec<Page> = parts.collect();
        let one_by_one = parts.iter().cloned().reduce(|page, part| super::page(vec![page, part], limit, reverse));
        let page = page(parts, limit, reverse);
        if regions.len() > 1 {
            assert_eq!(one_by_one.as_ref(), Some(&page), "merged one by one it is the same page");
        }
        assert!(page.entries.len() <= limit);
        assert!(page.resume.is_none() || !page.entries.is_empty(), "it advances");
        found.extend(page.entries);
        match page.resume {
            None => return found,
            Some(next) if reverse => range.1 = Some(next),
            Some(next) => range.0 = next,
        }
    }
    unreachable!("a scan ends")
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(prop::sample::select(vec![0_u8, b'a', b'b', 255]), 0..5).prop_map(Bytes::from)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn pages_of_all_regions_are_those_of_one_sorted_map(
        map in prop::collection::btree_map(bytes().prop_filter("keys have bytes", |key| !key.is_empty()), bytes(), 0..60),
        tokens in 1..9_u32,
        range in (bytes(), prop::option::of(bytes())),
        limit in 1..12_usize,
        most in prop::collection::vec(1..8_usize, 1..6),
        reverse in any::<bool>(),
    ) {
        let partition = Partition::Hash { tokens };
        let splits: Vec<Bytes> = partition.splits().collect();
        let mut regions = vec![Map::new(); tokens as usize];
        for (key, value) in &map {
            let place = partition.place(key);
            regions[splits.partition_point(|split| split[..] <= place[..])].insert(key.clone(), value.clone());
        }
        let all = scan(&map, &range.0, range.1.as_ref(), usize::MAX, reverse).entries;
        prop_assert_eq!(merged(&regions, range, limit, &most, reverse), all);
    }
}

#[test]
fn nothing_is_a_page_too() {
    assert_eq!(page(Vec::new(), 5, false), Page::default());
    // A region that answers nothing and wants to be asked again.
    let stuck = Page { entries: Vec::new(), resume: Some("m".into()) };
    assert_eq!(page(vec![stuck.clone()], 5, true), stuck);
}

#[test]
fn what_does_not_fit_is_left_for_later() {
    let pair = |key: &'static str| (Bytes::from(key), Bytes::from("value"));
    let cut = |room, reverse| {
        let entries = if reverse { vec![pair("b"), pair("a")] } else { vec![pair("a"), pair("b")] };
        let mut page = Page { entries, resume: None };
        page.cut(room, 2, reverse);
        (page.entries.len(), page.resume)
    };
    assert_eq!([cut(16, false), cut(16, true)], [(2, None), (2, None)]);
    assert_eq!([cut(15, false), cut(15, true)], [(1, Some("b".into())), (1, Some("a\0".into()))]);
    assert_eq!([cut(7, false), cut(7, true)], [(0, Some("a".into())), (0, Some("b\0".into()))]);
}

#[test]
fn regions_are_asked_for_their_part_and_a_little_more() {
    assert_eq!([share(1, 1), share(1, 100), share(512, 1), share(512, 4), share(512, 16_384)], [1, 1, 512, 258, 2]);
    assert_eq!(share(u32::MAX, 1), u32::MAX);
}
