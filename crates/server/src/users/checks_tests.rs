//! Floods of tries, by simulated time: which wait for which, what one check answers, and that nothing grows.

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

fn home(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!("10.0.{high}.{low}")
}

/// The next task fails; returns the replies that this answers.
fn fail_next(checks: &mut Checks<u32>, now: Nanos) -> Vec<u32> {
    let task = checks.next(now, &mut Vec::new()).expect("a try waits");
    checks.finish(now, &task, &Answer::Refused).into_iter().map(|one| one.reply).collect()
}

/// A try that fails at once, without waiting for its turn.
fn fail(checks: &mut Checks<u32>, now: Nanos, question: &Question) {
    let Work::Check { user, .. } = &question.work else { panic!("it checks a password") };
    subjects(Some(user), question.from.map(network)).for_each(|subject| checks.count_failure(now, subject));
}

fn is_suspect(checks: &Checks<u32>, now: Nanos, question: &Question) -> bool {
    let Work::Check { user, .. } = &question.work else { panic!("it checks a password") };
    checks.try_slow_until(now, Some(user), question.from.map(network)).is_some()
}

fn admitted() -> Answer {
    Answer::Admitted("alice".parse().expect("a name"), Some(hash().id()))
}

#[test]
fn after_a_restart_one_check_answers_all_clients_of_a_user() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    for number in 0..2000 {
        let question = try_of("alice", "pw", &home(number));
        assert_eq!(checks.take(now, &users, question, number.into()), Taken::Waits);
    }
    let task = checks.next(now, &mut Vec::new()).expect("they wait");
    // Others come while it is checked.
    for number in 2000..4000 {
        assert_eq!(checks.take(now, &users, try_of("alice", "pw", ATTACKER), number), Taken::Waits);
    }
    assert_eq!(checks.take(now, &users, try_of("alice", "other", ATTACKER), 4000), Taken::Waits);
    let replies: Vec<u32> = checks.finish(now, &task, &admitted()).into_iter().map(|one| one.reply).collect();
    assert_eq!(replies, (0..4000).collect::<Vec<u32>>());
    let late = checks.take(now, &users, try_of("alice", "pw", "10.9.0.1"), 5000);
    assert_eq!(late, Taken::Answered(5000, admitted()));
    assert_eq!(fail_next(&mut checks, now), [4000], "another password is another check");
    assert!(checks.groups.is_empty() && checks.tries == 0);
}

#[test]
fn a_wrong_password_of_one_client_does_not_shut_out_the_others_of_its_address() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    for number in 0..5 {
        checks.take(now, &users, try_of("alice", &format!("old{number}"), ATTACKER), number);
    }
    for number in 10..4010 {
        assert_eq!(checks.take(now, &users, try_of("alice", "pw", ATTACKER), number), Taken::Waits);
    }
    for number in 0..4 {
        assert_eq!(fail_next(&mut checks, now), [number]);
    }
    assert!(checks.next(now, &mut Vec::new()).is_none(), "the next check is slowed");
    let due = checks.next_due(now).expect("two groups wait");
    assert_eq!(due, now + FIRST_DELAY);
    assert_eq!(fail_next(&mut checks, due), [4]);
    let due = checks.next_due(due).expect("one waits");
    let task = checks.next(due, &mut Vec::new()).expect("its time has come");
    assert_eq!(checks.finish(due, &task, &admitted()).len(), 4000);
    assert!(due - now < SUSPECT_TIMEOUT);
}

#[test]
fn users_that_change_during_a_check_are_looked_at_again() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    checks.take(now, &users, try_of("alice", "new", "10.0.0.1"), 1);
    let task = checks.next(now, &mut Vec::new()).expect("it waits");
    checks.repeat(task);
    checks.take(now, &users, try_of("alice", "new", "10.0.0.2"), 2);
    let task = checks.next(now, &mut Vec::new()).expect("it waits again");
    assert_eq!(checks.finish(now, &task, &admitted()).len(), 2);
    assert!(checks.next(now, &mut Vec::new()).is_none());
}

#[test]
fn a_failed_try_is_answered_at_once_and_the_next_check_is_slowed_and_all_is_forgotten_in_time() {
    let mut checks = checks();
    let users = users(&hash());
    let mut now = Nanos::from_secs(100);
    // Of a client that tries again as soon as it has an answer.
    let mut try_again = |now: Nanos, number: u32| {
        let taken = checks.take(now, &users, try_of("alice", "no", ATTACKER), number);
        if let Taken::Answered(_, answer) = taken {
            return (Some(answer), now);
        }
        let mut checked_at = now;
        loop {
            let mut answered = Vec::new();
            match checks.next(checked_at, &mut answered) {
                Some(task) => {
                    assert_eq!(checks.finish(checked_at, &task, &Answer::Refused).len(), 1);
                    return (None, checked_at);
                }
                None if answered.is_empty() => checked_at = checks.next_due(checked_at).expect("it waits"),
                None => return (answered.pop().map(|(_, answer)| answer), checked_at),
            }
        }
    };
    for (number, delay_ms) in [0, 0, 0, 0, 100, 200, 400].into_iter().enumerate() {
        let (unchecked, at) = try_again(now, number as u32);
        assert_eq!((unchecked, at - now), (None, Nanos::from_millis(delay_ms)), "try {number}");
        now = at;
    }
    for delay_ms in [800, 1600, 3200, 5000, 5000] {
        let delay = Nanos::from_millis(delay_ms);
        assert_eq!(try_again(now, 8), (Some(Answer::TooSoon(delay)), now), "it is told when to come again");
        assert_eq!(try_again(now + delay, 9), (None, now + delay));
        now += delay;
    }
    let question = try_of("alice", "no", ATTACKER);
    let later = now + FORGOTTEN_AFTER + Nanos(1);
    assert!(is_suspect(&checks, now, &question) && !is_suspect(&checks, later, &question));
}

#[test]
fn a_suspect_try_whose_check_is_put_off_is_answered_within_its_timeout() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    for _ in 0..6 {
        fail(&mut checks, now, &try_of("alice", "x", ATTACKER));
    }
    assert_eq!(checks.take(now, &users, try_of("alice", "a", ATTACKER), 1), Taken::Waits);
    assert_eq!(checks.take(now, &users, try_of("alice", "b", ATTACKER), 2), Taken::Waits);
    let due = checks.next_due(now).expect("they wait");
    assert_eq!(due, now + Nanos::from_millis(400));
    assert_eq!(fail_next(&mut checks, due), [1]);
    let mut answered = Vec::new();
    assert!(checks.next(due, &mut answered).is_none() && answered.is_empty());
    let due = checks.next_due(due).expect("one waits");
    assert_eq!(due, now + SUSPECT_TIMEOUT);
    assert!(checks.next(due, &mut answered).is_none());
    assert_eq!(answered, [(2, Answer::TooSoon(Nanos::from_millis(700)))]);
    assert!(checks.groups.is_empty() && checks.suspect.is_empty() && checks.tries == 0);
}

#[test]
fn an_address_that_guesses_neither_fills_the_queue_nor_holds_up_others() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    for number in 0..1000 {
        assert_eq!(checks.take(now, &users, try_of(&format!("u{number}"), "x", ATTACKER), number), Taken::Waits);
    }
    assert_eq!(checks.take(now, &users, try_of("alice", "pw", "10.0.0.1"), 5000), Taken::Waits);
    let (mut answered, mut served, mut alice_after) = (Vec::new(), 0, None);
    while let Some(task) = checks.next(now, &mut answered) {
        served += 1;
        for one in checks.finish(now, &task, &Answer::Refused) {
            if one.reply == 5000 {
                alice_after = Some(served);
            }
        }
    }
    // Four failures make it suspect: then two of its tries may wait, and all others are refused at once.
    assert_eq!((served, alice_after), (5, Some(5)));
    assert_eq!((answered.len(), checks.suspect.len()), (1001 - 5 - MOST_OF_ONE, MOST_OF_ONE));
    let third = checks.take(now, &users, try_of("carol", "x", ATTACKER), 3);
    assert_eq!(third, Taken::Answered(3, Answer::Busy));
}

#[test]
fn a_user_that_is_attacked_still_comes_in_from_where_it_came_before() {
    let mut checks = checks();
    let (now, users) = (Nanos::from_secs(1), users(&hash()));
    checks.take(now, &users, try_of("alice", "pw", "10.0.0.1"), 1);
    let task = checks.next(now, &mut Vec::new()).expect("it waits");
    checks.finish(now, &task, &admitted());
    for number in 0..100 {
        fail(&mut checks, now, &try_of("alice", "x", &format!("10.1.0.{number}")));
    }
    assert!(!is_suspect(&checks, now, &try_of("alice", "another", "10.0.0.1")));
    assert!(is_suspect(&checks, now, &try_of("alice", "pw", "10.2.0.1")));
    assert!(!is_suspect(&checks, now, &try_of("bob", "pw", "10.2.0.1")));
    // What is known is known from everywhere, and costs nothing.
    let known = checks.take(now, &users, try_of("alice", "pw", "10.2.0.1"), 9);
    assert_eq!(known, Taken::Answered(9, admitted()));
}

#[test]
fn what_is_remembered_ends_with_the_password() {
    let now = Nanos::from_secs(1);
    let other = PasswordHash::new("$argon2id$other".into());
    for changed in [Users::default(), users(&other)] {
        let mut checks = checks();
        checks.take(now, &users(&hash()), try_of("alice", "pw", "10.0.0.1"), 1);
        let task = checks.next(now, &mut Vec::new()).expect("it waits");
        checks.finish(now, &task, &admitted());
        assert_eq!(checks.take(now, &users(&hash()), try_of("alice", "pw2", "10.0.0.1"), 1), Taken::Waits);
        let known = checks.take(now, &users(&hash()), try_of("alice", "pw", "10.0.0.1"), 1);
        assert!(matches!(known, Taken::Answered(..)));
        assert_eq!(checks.take(now, &changed, try_of("alice", "pw", "10.0.0.1"), 1), Taken::Waits);
    }
}

#[test]
fn tables_have_bounds_and_a_flood_of_names_clears_no_address_that_guesses() {
    let mut checks = checks();
    let now = Nanos::from_secs(1);
    for _ in 0..20 {
        fail(&mut checks, now, &try_of("alice", "x", ATTACKER));
    }
    let no_users = Users::default();
    for number in 0..3 * MOST_REMEMBERED as u32 {
        let address = IpAddr::from(number.to_be_bytes()).to_string();
        let question = try_of(&format!("u{number}"), "x", &address);
        fail(&mut checks, now, &question);
        if checks.take(now, &no_users, question, number) == Taken::Waits {
            let task = checks.next(now, &mut Vec::new()).expect("it waits");
            let name = format!("u{number}").parse().expect("a name");
            checks.finish(now, &task, &Answer::Admitted(name, Some(PasswordId(number.into()))));
        }
    }
    assert!(checks.failures.len() <= MOST_REMEMBERED && checks.known.map.len() == MOST_REMEMBERED);
    assert!(checks.known.order.len() == MOST_REMEMBERED && checks.good.map.len() == MOST_REMEMBERED);
    assert!(is_suspect(&checks, now, &try_of("bob", "x", ATTACKER)));
    // All addresses of one network of IPv6 count as one.
    for number in 0..5 {
        fail(&mut checks, now, &try_of("x", "x", &format!("2001:db8::{number}")));
    }
    assert!(is_suspect(&checks, now, &try_of("y", "x", "2001:db8::ffff:1")));
    assert!(!is_suspect(&checks, now, &try_of("y", "x", "2001:db8:0:1::1")));
    // Of those that wait, too.
    let waiting = (0..2 * MOST_WAITING as u32).filter(|number| {
        let address = IpAddr::from((number + (1 << 30)).to_be_bytes()).to_string();
        checks.take(now, &no_users, try_of(&format!("w{number}"), "x", &address), *number) == Taken::Waits
    });
    assert_eq!(waiting.count(), MOST_WAITING);
}

#[test]
fn a_client_that_tries_for_a_minute_without_pause_gets_few_checks() {
    let mut checks = checks();
    let (start, users) = (Nanos::from_secs(1), users(&hash()));
    let mut checked = 0;
    for tenth in 0..600_u64 {
        let now = start + Nanos(tenth * 100_000_000);
        // On any number of connections, each with another password.
        for guess in 0..50 {
            checks.take(now, &users, try_of("alice", &format!("{tenth}-{guess}"), ATTACKER), 1);
        }
        let mut answered = Vec::new();
        while let Some(task) = checks.next(now, &mut answered) {
            checks.finish(now, &task, &Answer::Refused);
            checked += 1;
        }
    }
    assert!((15..25).contains(&checked), "{checked} checks");
}
