//! The tables and changes that arguments of `leeward table` make.

use super::*;
use crate::args::{Placement, placement};
use crate::command_line::{Cli, Command};
use clap::Parser;
use leeward_format::cluster::{Addressing, CompactionMode, ReadPaths};
use leeward_format::packed::{Codec, Compression};

fn command(name: &str, args: &str) -> TableCommand {
    let args = ["leeward", "table", name].into_iter().chain(args.split_whitespace());
    let cli = Cli::try_parse_from(args).expect("they are well-formed");
    let Command::Table(TableCommands { command }) = cli.command else { panic!("{cli:?}") };
    command
}

fn create(args: &str) -> NewTable {
    let TableCommand::Create(args) = command("create", args) else { panic!("not made: {args}") };
    args.new_table(3).expect("they go together")
}

fn alter(args: &str) -> Option<TableChange> {
    let TableCommand::Alter(args) = command("alter", args) else { panic!("not altered: {args}") };
    args.change()
}

#[test]
fn keys_are_partitioned_by_tokens() {
    assert_eq!(create("a").options.partition, Partition::Range);
    let hashed = create("a --partition hash --tokens 12");
    assert_eq!((hashed.options.partition, hashed.starts().len()), (Partition::Hash { tokens: 12 }, 12));
    assert_eq!(hashed.check(), Ok(()));
    assert_eq!(create("a --partition hash").options.partition, Partition::Hash { tokens: DEFAULT_TOKENS });
    let slots = create("a --partition slots --tokens 6");
    assert_eq!((slots.options.partition, slots.starts().len()), (Partition::Slots { tokens: 6 }, 6));
    assert_eq!(slots.check(), Ok(()));
    assert_eq!(create("a --preset depart").options.partition, Partition::Hash { tokens: DEFAULT_TOKENS });
    assert_eq!(create("a --preset depart --tokens 3").options.partition, Partition::Hash { tokens: 3 });
    assert_eq!(create("a --preset depart --partition slots").options.partition, Partition::Slots { tokens: 16 });
    assert_eq!(create("a --preset depart --partition range").options.partition, Partition::Range);
    for wrong in ["--tokens 0 --partition hash", "--tokens 16385 --partition hash", "--partition lists"] {
        let args = format!("leeward table create a {wrong}");
        assert!(Cli::try_parse_from(args.split_whitespace()).is_err(), "{wrong}");
    }
    let TableCommand::Create(args) = command("create", "a --tokens 3") else { panic!("not made") };
    assert!(args.new_table(3).is_err_and(|why| why.contains("--partition hash")));
}

#[test]
fn only_ranges_of_keys_have_first_keys() {
    assert_eq!(create("a --partition range --split-at g,n").splits, ["g", "n"]);
    assert_eq!(create("a --preset depart --partition range --regions 2").splits, [&b"\x80"[..]]);
    for wrong in ["--partition hash --regions 1", "--partition slots --split-at g", "--preset depart --regions 2"] {
        let TableCommand::Create(args) = command("create", &format!("a {wrong}")) else { panic!("not made: {wrong}") };
        assert!(args.new_table(3).is_err_and(|why| why.contains("need --partition range")), "{wrong}");
    }
}

#[test]
fn options_win_over_the_preset() {
    let plain = create("orders");
    assert_eq!(plain.options, TableOptions { name: "orders".into(), ..TableOptions::default() });
    assert!(plain.splits.is_empty());
    assert_eq!(create("a --preset tebis").options.placement, create("a --preset talos").options.placement);
    let mixed = create("a --preset tebis --placement in-place --replicas 5 --l0-kib 128 --growth-factor 4").options;
    assert_eq!(mixed.placement, create("a --placement in-place").options.placement);
    assert_eq!((mixed.l1_runs, mixed.compaction), (1, CompactionMode::WholeLevel));
    let given = create("a --preset tebis --l1-runs 6 --compaction partial").options;
    assert_eq!((given.l1_runs, given.compaction), (6, CompactionMode::Partial));
    let refused = Cli::try_parse_from(["leeward", "table", "create", "a", "--compaction", "some"]).unwrap_err();
    assert!(refused.to_string().contains("it is partial or whole-level"), "{refused}");
    assert_eq!((mixed.replicas, mixed.min_in_sync, mixed.l0_bytes, mixed.growth_factor), (5, 3, 128 << 10, 4));
}

#[test]
fn the_last_level_is_compressed_as_the_others_unless_it_is_said() {
    let compression = |args: &str| {
        let Compression { upper, last } = create(args).options.compression;
        (upper, last)
    };
    assert_eq!(compression("a"), (Codec::None, Codec::None));
    assert_eq!(compression("a --compression lz4"), (Codec::Lz4, Codec::Lz4));
    assert_eq!(compression("a --compression lz4 --last-level-compression zstd"), (Codec::Lz4, Codec::Zstd));
    assert_eq!(compression("a --last-level-compression zstd"), (Codec::None, Codec::Zstd));
    let refused = Cli::try_parse_from(["leeward", "table", "create", "a", "--compression", "gzip"]).unwrap_err();
    assert!(refused.to_string().contains("it is none, lz4 or zstd"), "{refused}");
}

#[test]
fn the_papers_presets_have_physical_addressing() {
    let addressing = |args: &str| create(args).options.addressing;
    assert_eq!(addressing("a"), Addressing::Logical);
    for preset in ["anthus", "tebis", "build-index"] {
        assert_eq!(addressing(&format!("a --preset {preset}")), Addressing::Physical, "{preset}");
        assert_eq!(addressing(&format!("a --preset {preset} --addressing logical")), Addressing::Logical, "{preset}");
    }
}

#[test]
fn a_quorum_is_some_of_the_replicas() {
    assert_eq!(create("a").options.quorum, None);
    assert_eq!(create("a --quorum 2").check(), Ok(()));
    let of_two = create("a --quorum 3 --replicas 2").check().unwrap_err();
    assert!(of_two.contains("quorum is 3: it must be from 2 to 2"), "{of_two}");
    assert!(create("a --quorum 2 --replicas 1").check().unwrap_err().contains("one replica"));
    assert!(Cli::try_parse_from(["leeward", "table", "create", "a", "--quorum", "1"]).is_err());
}

#[test]
fn when_a_write_is_acknowledged_and_by_how_many_are_two_options() {
    let of = |args: &str| {
        let TableOptions { acknowledge, quorum, .. } = create(args).options;
        (acknowledge, quorum)
    };
    assert_eq!(of("a --acknowledge last-write"), (Acknowledge::LastWrite, None));
    assert_eq!(of("a --acknowledge last-flush"), (Acknowledge::LastFlush, None));
    assert_eq!(of("a --acknowledge last-flush --quorum 2"), (Acknowledge::LastFlush, Some(2)));
    for wrong in ["1", "2", "all"] {
        let refused = Cli::try_parse_from(["leeward", "table", "create", "a", "--acknowledge", wrong]).unwrap_err();
        assert!(refused.to_string().contains("last-write"), "{refused}");
    }
}

#[test]
fn the_members_that_are_named_answer_reads() {
    assert_eq!(create("a").options.reads.stale, Reads::Primary);
    assert_eq!(create("a --reads any").options.reads.stale, Reads::ANY);
    assert_eq!(create("a --reads any:250").options.reads.stale, Reads::Any { max_staleness_ms: 250 });
    assert!(create("a --reads any:5").check().unwrap_err().contains("from 50 to 600000"));
    assert_eq!(alter("a --reads any").and_then(|change| change.reads), Some(Reads::ANY));
}

#[test]
fn records_are_posted_as_it_is_said() {
    assert_eq!(create("a").options.posting, Posting::Coalesced);
    assert_eq!(create("a --preset tebis --posting per-record").options.posting, Posting::PerRecord);
    let refused = Cli::try_parse_from(["leeward", "table", "create", "a", "--posting", "in-order"]).unwrap_err();
    assert!(refused.to_string().contains("it is coalesced or per-record"), "{refused}");
}

#[test]
fn the_index_is_the_one_that_is_named() {
    assert_eq!(create("a").options.reads.index, IndexKind::Lsm);
    assert_eq!(create("a --index lsm").options.reads.index, IndexKind::Lsm);
    assert_eq!(create("a --preset depart --index hybrid").options.reads.index, IndexKind::Hybrid);
    assert_eq!(create("a --index hybrid").check(), Ok(()));
    for (option, index) in [("lsm", IndexKind::Lsm), ("hybrid", IndexKind::Hybrid)] {
        assert_eq!(alter(&format!("a --index {option}")).and_then(|change| change.index), Some(index));
    }
    for command in ["create", "alter"] {
        let refused = Cli::try_parse_from(["leeward", "table", command, "a", "--index", "hash"]).unwrap_err();
        assert!(refused.to_string().contains("it is lsm or hybrid"), "{refused}");
    }
}

#[test]
fn the_members_that_are_named_answer_scans() {
    assert_eq!(create("a").options.reads.scans, Scans::Primary);
    let both = create("a --reads any --index hybrid --scans backups").options.reads;
    assert_eq!(both, ReadPaths { stale: Reads::ANY, index: IndexKind::Hybrid, scans: Scans::Backups });
    assert_eq!(alter("a --scans primary").and_then(|change| change.scans), Some(Scans::Primary));
    let refused = Cli::try_parse_from(["leeward", "table", "create", "a", "--scans", "any"]).unwrap_err();
    assert!(refused.to_string().contains("it is primary or backups"), "{refused}");
}

#[test]
fn only_what_is_given_is_altered() {
    assert_eq!(alter("orders"), None);
    let untouched = TableChange { name: "orders".parse().expect("a name"), ..TableChange::default() };
    let posting = Some(Posting::PerRecord);
    assert_eq!(alter("orders --posting per-record"), Some(TableChange { posting, ..untouched.clone() }));
    let (acknowledge, max_unacked_bytes) = (Some(Acknowledge::LastFlush), Some(256 << 10));
    let change = alter("orders --acknowledge last-flush --max-unacked-kib 256");
    assert_eq!(change, Some(TableChange { acknowledge, max_unacked_bytes, ..untouched }));
}

#[test]
fn splits_are_given_or_even() {
    assert_eq!(create("a --split-at g,n").splits, ["g", "n"]);
    assert_eq!(create("a --regions 4").splits, [&b"\x40"[..], b"\x80", b"\xc0"]);
    for regions in [1, 2, 3, 7, 256, 1000, 1024] {
        let table = create(&format!("a --regions {regions}"));
        assert_eq!(table.splits.len(), regions - 1);
        assert_eq!(table.check(), Ok(()), "{regions}");
    }
}

#[test]
fn sizes_have_units() {
    assert_eq!(create("a").options.split_bytes, 8 << 30);
    for (text, bytes) in [("0", 0), ("33554432", 32 << 20), ("512MiB", 512 << 20), ("8GiB", 8 << 30), ("2TiB", 2 << 40)]
    {
        assert_eq!(create(&format!("a --split-bytes {text}")).options.split_bytes, bytes, "{text}");
        assert_eq!(alter(&format!("a --split-bytes {text}")).and_then(|change| change.split_bytes), Some(bytes));
    }
    for wrong in ["8GB", "-1", "GiB", "x", "99999999TiB"] {
        assert!(Cli::try_parse_from(["leeward", "table", "create", "a", "--split-bytes", wrong]).is_err(), "{wrong}");
    }
    let small = create("a --split-bytes 1MiB").check();
    assert!(small.is_err_and(|why| why.contains("split_bytes, where it is not 0, is 1048576")));
}

#[test]
fn placements_are_words_or_a_size() {
    assert_eq!(placement("separated"), Ok(Placement::SEPARATED));
    assert_eq!(placement("in-place"), Ok(Placement::IN_PLACE));
    assert_eq!(placement("hybrid"), Ok(Placement { medium_from: 100, large_from: 1000 }));
    assert_eq!(placement("512"), Ok(Placement::threshold(512)));
    assert_eq!(placement("64,512"), Ok(Placement { medium_from: 64, large_from: 512 }));
    for wrong in ["512,64", "1,2,3", "-1", "large"] {
        assert!(placement(wrong).is_err_and(|error| error.contains("two that ascend")), "{wrong}");
    }
    assert!(placement("hybird").is_err_and(|error| error.contains("`separated`")));
}
