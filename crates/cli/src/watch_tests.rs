//! The table of shares.

use super::*;
use leeward_format::ServerId;

#[test]
fn servers_are_listed_with_what_they_have_of_an_equal_share() {
    let mib = 1 << 20;
    let shares = [
        (ServerId(1), Share { primaries: 8, copies: 24, builds: 0, bytes: 300 * mib }),
        (ServerId(4), Share { primaries: 0, copies: 2, builds: 2, bytes: 100 * mib }),
    ];
    let spread = Spread { shares: shares.into(), moving: Vec::new() };
    let text = share_table(&spread);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "node  primary of  copies  building  bytes of copies  of an equal share");
    assert_eq!(lines[1], "1     8           24      0         300 MiB          150 %");
    assert_eq!(lines[2], "4     0           2       2         100 MiB          50 %");
}
