//! scratch
use leeward_platform::planted::Bug;
fn main() {
    let n: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    std::panic::set_hook(Box::new(|_| {}));
    for bug in Bug::ALL {
        let t = std::time::Instant::now();
        let mut found = vec![];
        for seed in 1..=n {
            let r = leeward_simulation::run(seed, Some(bug));
            if let Some(f) = r.failure { found.push((seed, f)); if found.len() >= 3 { break; } }
        }
        println!("{bug:?}: {:?} {:?}", found.iter().map(|f| (f.0, f.1.chars().take(120).collect::<String>())).collect::<Vec<_>>(), t.elapsed());
    }
}
