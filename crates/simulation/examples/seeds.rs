//! scratch
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let t = std::time::Instant::now();
    let mut bad = 0;
    for seed in args[0]..args[0]+args[1] {
        let r = leeward_simulation::run(seed, None);
        if let Some(f) = &r.failure { bad += 1; println!("seed {seed} FAILED: {}", &f[..f.len().min(1500)]); }
        if args[1] < 20 { println!("{r:?}"); }
    }
    println!("{bad} bad of {} in {:?}", args[1], t.elapsed());
}
