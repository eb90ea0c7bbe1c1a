//! Floods of tries, by simulated time: who waits for whom, who is delayed, and that nothing grows.

use super::*;
use leeward_format::user::{PasswordHash, User};
use leeward_security::passwords::Password;

const ATTACKER: &str = "10.0.0.66";

fn try_of(user: &str, password: &str, from: &str) -> Question {
    let work = Work::Check { user: user.into(), password: Password::new(password.as_bytes()) };
    Question { connection: 1, from: Some(from.parse().expect("an address")), work }
}

fn checks() -> Checks<u32> {
    Checks::new(MemoryKey::generate())
}

fn users(id: &PasswordHash) -> Users {
    let mut users = Users::default();
    let alice = User::new("alice".parse().expect("a name"));
    users.put(User { is_enabled: true, passwords: vec![id.clone()], ..alice });
    users
}

fn hash() -> PasswordHash {
    PasswordHash::new("$argon2id$x".into())
}

#[test]
fn failures_are_delayed_more_and_more_and_forgotten_in_time() {
    let mut checks = checks();
    let now = Nanos::from_secs(100);
    let question = try_of("alice", "no", ATTACKER);
    let at_once: Vec<u32> = (0..12).filter_map(|number| checks.failed(now, &question, number)).collect();
    assert_eq!(at_once, [0, 1, 2]);
    let mut answered = Vec::new();
    for (delay_ms, number) in [100, 200, 400, 800, 1600, 3200, 5000].into_iter().zip(3..) {
        let due = now + Nanos::from_millis(delay_ms);
        assert_eq!(checks.next_due(), Some(due));
        assert!(checks.next(Nanos(due.0 - 1), &mut answered).is_none() && answered.is_empty());
        assert!(checks.next(due, &mut answered).is_none());
        assert_eq!(answered.remove(0), (number, Answer::Refused));
    }
    // The longest delay is the same for all that follow.
    assert_eq!(answered, [(10, Answer::Refused), (11, Answer::Refused)]);
    assert_eq!(checks.next_due(), None);
    let later = now + FORGOTTEN_AFTER + Nanos(1);
    assert!(checks.is_suspect(now, &question) && !checks.is_suspect(later, &question));
    assert_eq!(checks.failed(later, &question, 20), Some(20));
}

#[test]
fn an_address_that_guesses_neither_fills_the_queue_nor_holds_up_others() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    for number in 0..1000 {
        assert_eq!(checks.take(now, &users, try_of(&format!("u{number}"), "x", ATTACKER), number), Taken::Waits);
    }
    assert_eq!(checks.take(now, &users, try_of("alice", "pw", "10.0.0.1"), 5000), Taken::Waits);
    let (mut busy, mut served, mut alice_after) = (Vec::new(), 0, None);
    while let Some((question, reply)) = checks.next(now, &mut busy) {
        served += 1;
        if reply == 5000 {
            alice_after = Some(served);
        } else {
            checks.failed(now, &question, reply);
        }
    }
    // Four failures make it suspect: then two of its tries may wait, and all others are refused at once.
    assert!(alice_after.is_some_and(|after| after <= 6), "{alice_after:?}");
    assert_eq!(busy.len() + served, 1001);
    assert!(served <= 10, "{served}");
    let now = now + LONGEST_DELAY;
    assert!(matches!(checks.take(now, &users, try_of("alice", "x", ATTACKER), 1), Taken::Waits));
    assert!(matches!(checks.take(now, &users, try_of("bob", "x", ATTACKER), 2), Taken::Waits));
    assert!(matches!(checks.take(now, &users, try_of("carol", "x", ATTACKER), 3), Taken::Busy(3)));
}

#[test]
fn a_user_that_is_attacked_still_comes_in_from_where_it_came_before() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    let home = try_of("alice", "pw", "10.0.0.1");
    checks.succeeded(&home, Some(hash().id()));
    for number in 0..100 {
        checks.failed(now, &try_of("alice", "x", &format!("10.1.0.{number}")), number);
    }
    assert!(!checks.is_suspect(now, &try_of("alice", "another", "10.0.0.1")));
    assert!(checks.is_suspect(now, &try_of("alice", "pw", "10.2.0.1")));
    assert!(!checks.is_suspect(now, &try_of("bob", "pw", "10.2.0.1")));
    // What is known is known from everywhere, and costs nothing.
    let known = checks.take(now, &users, try_of("alice", "pw", "10.2.0.1"), 9);
    assert_eq!(known, Taken::Known("alice".parse().expect("a name"), hash().id(), 9));
}

#[test]
fn what_is_remembered_ends_with_the_password() {
    let mut checks = checks();
    let now = Nanos::from_secs(1);
    checks.succeeded(&try_of("alice", "pw", "10.0.0.1"), Some(hash().id()));
    let other = PasswordHash::new("$argon2id$other".into());
    for users in [Users::default(), users(&other)] {
        assert_eq!(checks.take(now, &users, try_of("alice", "pw", "10.0.0.1"), 1), Taken::Waits);
    }
    assert_eq!(checks.take(now, &users(&hash()), try_of("alice", "pw2", "10.0.0.1"), 1), Taken::Waits);
    assert!(matches!(checks.take(now, &users(&hash()), try_of("alice", "pw", "10.0.0.1"), 1), Taken::Known(..)));
}

#[test]
fn tables_have_bounds_and_a_flood_of_names_clears_no_address_that_guesses() {
    let mut checks = checks();
    let now = Nanos::from_secs(1);
    for _ in 0..20 {
        checks.failed(now, &try_of("alice", "x", ATTACKER), 0);
    }
    for number in 0..3 * MOST_REMEMBERED as u32 {
        let address = IpAddr::from(number.to_be_bytes()).to_string();
        let question = try_of(&format!("u{number}"), "x", &address);
        checks.failed(now, &question, number);
        checks.succeeded(&question, Some(PasswordId(number.into())));
    }
    assert!(checks.failures.len() <= MOST_REMEMBERED && checks.known.map.len() <= MOST_REMEMBERED);
    assert!(checks.known.order.len() <= MOST_REMEMBERED && checks.good.map.len() <= MOST_REMEMBERED);
    assert!(checks.is_suspect(now, &try_of("bob", "x", ATTACKER)));
    // All addresses of one network of IPv6 count as one.
    for number in 0..5 {
        checks.failed(now, &try_of("x", "x", &format!("2001:db8::{number}")), number);
    }
    assert!(checks.is_suspect(now, &try_of("y", "x", "2001:db8::ffff:1")));
    assert!(!checks.is_suspect(now, &try_of("y", "x", "2001:db8:0:1::1")));
}

#[test]
fn tries_whose_answers_are_delayed_count_as_waiting() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    let mut answered = 0;
    // A minute of a client that tries again as soon as it has a place, on any number of connections.
    for tenth in 0..600_u64 {
        let now = now + Nanos(tenth * 100_000_000);
        while checks.take(now, &users, try_of("alice", "no", ATTACKER), 1) == Taken::Waits {
            let (question, reply) = checks.next(now, &mut Vec::new()).expect("it waits");
            checks.failed(now, &question, reply);
            answered += 1;
        }
    }
    assert!(answered < 40, "{answered} tries");
}
