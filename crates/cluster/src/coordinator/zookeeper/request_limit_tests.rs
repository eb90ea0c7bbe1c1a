//! Which requests are refused after which closes, and for how long.

use super::*;

const SECOND: Nanos = Nanos::from_secs(1);

/// A limit after this many connections that were closed right after a request of `bytes`.
fn closed(times: u32, bytes: usize) -> RequestLimit {
    let mut limit = RequestLimit::default();
    for _ in 0..times {
        limit.connected();
        limit.answered(100);
        limit.closed(SECOND, bytes);
    }
    limit
}

#[test]
fn a_request_that_closes_each_connection_is_refused_and_shorter_ones_are_not() {
    assert_eq!(closed(CLOSES - 1, 9000).refusal(SECOND, 9000), None);
    let limit = closed(CLOSES, 9000);
    let why = limit.refusal(SECOND, 9001).expect("it is too long");
    assert!(why.contains("a request of 9001 bytes") && why.contains("right after one of 9000"), "{why}");
    assert!(why.contains("jute.maxbuffer"), "{why}");
    assert_eq!(limit.refusal(SECOND, 8999), None);
}

#[test]
fn a_refusal_ends_and_lasts_longer_each_time() {
    let mut limit = closed(CLOSES, 9000);
    let mut lasted = Vec::new();
    let mut now = SECOND;
    for _ in 0..8 {
        let since = now;
        while limit.refusal(now, 9000).is_some() {
            now += SECOND;
        }
        lasted.push((now - since).as_millis() / 1000);
        limit.connected();
        limit.closed(now, 9000);
    }
    assert_eq!(lasted, [2, 4, 8, 16, 32, 60, 60, 60]);
    // The limit was raised.
    limit.answered(9000);
    assert_eq!(limit.refusal(now, usize::MAX), None);
}

#[test]
fn a_server_that_only_goes_away_is_no_limit() {
    let mut limit = RequestLimit::default();
    for _ in 0..10 {
        limit.connected();
        limit.answered(500);
        // Nothing was asked, or nothing longer than what was answered.
        limit.closed(SECOND, 0);
        limit.closed(SECOND, 400);
    }
    assert_eq!(limit.refusal(SECOND, usize::MAX), None);
    // Each connection takes the request that ended the one before.
    for _ in 0..10 {
        limit.connected();
        limit.closed(SECOND, 700);
        limit.connected();
        limit.answered(700);
    }
    assert_eq!(limit.refusal(SECOND, usize::MAX), None);
}
