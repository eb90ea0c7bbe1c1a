//! Options that are given again, times that are none, and patterns that no key can match: as in Redis, with which
//! `tests/clients/options.py` compares them.

use super::fake::Fake;
use super::golden::check;

/// A key that does not exist is null, whatever the time.
#[test]
fn the_time_of_getex_is_looked_at_where_there_is_a_key() {
    let mut fake = Fake::new(&[]);
    check(
        &mut fake,
        &[
            ("SET a 1", "+OK|"),
            ("GETEX a EX 0", "-ERR invalid expire time in 'getex' command|"),
            ("GETEX a EX x", "-ERR value is not an integer or out of range|"),
            ("GETEX none EX 0", "$-1|"),
            ("GETEX none EX x", "$-1|"),
            ("GETEX none EX 0 PX 1", "-ERR syntax error|"),
            ("GETEX \"\" EX 0", "-ERR the key is empty|"),
        ],
    );
}

/// The last value of an option counts, and only that is looked at. Options that differ exclude each other.
#[test]
fn options_may_be_given_again_as_in_redis() {
    let mut fake = Fake::new(&["g", "p"]);
    check(
        &mut fake,
        &[
            ("SET a 1 EX 10 EX 20", "+OK|"),
            ("TTL a", ":20|"),
            ("SET a 1 PX x PX 5000", "+OK|"),
            ("PTTL a", ":5000|"),
            ("SET a 2 KEEPTTL KEEPTTL", "+OK|"),
            ("PTTL a", ":5000|"),
            ("SET a 3 GET GET XX XX", "$1|2|"),
            ("SET a 4 NX NX", "$-1|"),
            ("GETEX a EX 10 EX 20", "$1|3|"),
            ("TTL a", ":20|"),
            ("GETEX a PERSIST PERSIST", "$1|3|"),
            ("TTL a", ":-1|"),
            ("SET a 1 EX 10 PX 20", "-ERR syntax error|"),
            ("SET a 1 EX 10 KEEPTTL", "-ERR syntax error|"),
            ("SET a 1 NX XX", "-ERR syntax error|"),
            ("SET a 1 EX 10 EX", "-ERR syntax error|"),
            ("SET a 1 EX 10 EX 0", "-ERR invalid expire time in 'set' command|"),
            ("GETEX a PERSIST EX 10", "-ERR syntax error|"),
            ("GETEX a EX 10 PERSIST", "-ERR syntax error|"),
            ("GET a", "$1|3|"),
        ],
    );
}

#[test]
fn no_key_begins_with_what_is_longer_than_any_key() {
    let mut fake = Fake::new(&["g", "p"]);
    let longest = "k".repeat(4096);
    check(
        &mut fake,
        &[
            (&format!("SET {longest} 1"), "+OK|"),
            (&format!("KEYS {longest}"), &format!("*1|$4096|{longest}|")),
            (&format!("KEYS {longest}*"), &format!("*1|$4096|{longest}|")),
        ],
    );
    for more in [1, 2, 12_000] {
        let literal = longest.clone() + &"k".repeat(more);
        check(
            &mut fake,
            &[
                (&format!("KEYS {literal}"), "*0|"),
                (&format!("KEYS {literal}*"), "*0|"),
                (&format!("SCAN 0 MATCH {literal}*"), "*2|$1|0|*0|"),
                (&format!("KPREFIX {literal}"), "*0|"),
            ],
        );
    }
}
