//! Each row has the medians of its kind, and a forwarded GET stands beside the one that Redis answers itself.

use super::*;

fn cost(cpu_us: f64) -> Cost {
    Cost { cpu_us, rate: 1000.0 / cpu_us }
}

fn rounds(of: impl Fn(Kind) -> (f64, f64)) -> Vec<(Kind, Option<Cost>, Cost)> {
    let round = |kind: Kind| {
        let (redis, leeward) = of(kind);
        (kind, (!kind.is_forwarded()).then(|| cost(redis)), cost(leeward))
    };
    Kind::ALL.into_iter().map(round).collect()
}

#[test]
fn a_forwarded_get_is_compared_with_the_one_at_the_primary() {
    let mut all = rounds(|kind| if kind == Kind::Get16 { (2.0, 2.6) } else { (4.0, 4.4) });
    all.extend(rounds(|_| (4.0, 40.0)));
    all.extend(rounds(|_| (1.0, 0.5)));
    let report = Report::of(&all).expect("there are rounds");
    let row = |kind: Kind| report.rows.iter().find(|row| row.kind == kind).expect("each kind has a row");
    assert_eq!((row(Kind::Get16).redis.cpu_us, row(Kind::Get16).leeward.cpu_us), (2.0, 2.6), "the medians");
    assert_eq!((row(Kind::Forwarded16).redis.cpu_us, row(Kind::Forwarded16).leeward.cpu_us), (2.0, 4.4));
    assert_eq!(row(Kind::Get16).ratio(), 1.3);
    assert!(row(Kind::Get16).is_met() && row(Kind::Forwarded16).is_met() && !row(Kind::Set16).is_met());
    let text = report.to_string();
    assert!(
        text.contains("| GET at the primary, 16 in flight | 2.00 (500) | 2.60 (385) | 1.30 | 1.30 | met |"),
        "{text}"
    );
    assert!(text.contains("| SET, 16 in flight | 4.00 (250) | 4.40 (227) | 1.10 | 0.45 | MISSED |"), "{text}");
    assert!(text.contains("| GET at another node | 4.00 (250) | 4.40 (227) | 1.10 |  |  |"), "{text}");
}

#[test]
fn without_rounds_there_is_no_report() {
    assert!(Report::of(&[]).is_none());
}

#[test]
fn one_in_flight_gets_a_quarter_of_the_requests() {
    let options = Options { rounds: 1, requests: 400_000, json: None };
    let counts = Kind::ALL.map(|kind| (kind.commands(&options).depth, kind.commands(&options).count));
    assert!(counts.iter().all(|count| [(1, 100_000), (16, 400_000)].contains(count)), "{counts:?}");
}
