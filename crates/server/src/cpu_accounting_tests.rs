//! The reported CPU times add up to the process's, and carriers are distinguished by their names.

use super::*;

fn of(status: &CpuStatus, account: Account) -> u64 {
    let is_of = |spent: &&CpuSpent| spent.activity == account.activity.name() && spent.role == account.role.name();
    status.spent.iter().find(is_of).map_or(0, |spent| spent.nanos)
}

fn work_for(millis: u64) {
    let until = process_nanos() + millis * 1_000_000;
    while process_nanos() < until {
        std::hint::spin_loop();
    }
}

#[test]
fn what_no_thread_accounts_for_is_other() {
    let cpu_accounting = CpuAccounting::default();
    {
        let _measured = cpu_accounting.measure(Activity::Compaction.of_backup());
        work_for(20);
    }
    work_for(20);
    let status = cpu_accounting.status();
    let compaction = of(&status, Activity::Compaction.of_backup());
    assert!(compaction > 0 && compaction < status.process_ns);
    let sum: u64 = status.spent.iter().map(|spent| spent.nanos).sum();
    assert_eq!(sum, status.process_ns);
    assert!(of(&status, Activity::Other.of_node()) > 0);
}

#[test]
fn the_kernel_tells_what_threads_spend_that_do_not_tell_themselves() {
    let tasks = tempfile::tempdir().expect("a directory");
    let (mut threads, ledger) = (HashMap::new(), Arc::new(Ledger::default()));
    let mut task = |id: &str, name: &str, nanos: u64| {
        let task = tasks.path().join(id);
        fs::create_dir_all(&task).expect("a directory");
        fs::write(task.join("comm"), format!("{name}\n")).expect("a file");
        fs::write(task.join("schedstat"), format!("{nanos} 7 9\n")).expect("a file");
        look_at_threads(tasks.path(), &mut threads, &ledger);
    };
    task("11", "fabric-in", 500);
    task("12", "fabric-out-2", 70);
    task("13", "job-1", 9);
    task("11", "fabric-in", 800);
    assert_eq!(ledger.nanos(Activity::Mirroring.of_backup()), 800);
    assert_eq!(ledger.nanos(Activity::Mirroring.of_primary()), 70);
    task("11", "rings-out-3", 100);
    assert_eq!(ledger.nanos(Activity::Send.of_node()), 100);
    assert_eq!(ledger.nanos(Activity::Mirroring.of_backup()), 800);
    task("14", SAMPLED_THREAD, 300);
    {
        let _sampled = ledger.open(Activity::Receive.of_node(), How::Sampled);
        work_for(1);
    }
    task("14", SAMPLED_THREAD, 1000);
    assert_eq!(ledger.nanos(Activity::Receive.of_node()), 1000, "what came before there was a sample is not lost");
}
