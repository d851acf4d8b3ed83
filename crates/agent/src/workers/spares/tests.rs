//! Tests of which spares are started and killed; the spares run `/bin/sleep` in place of an interpreter.

use super::*;
use std::path::Path;

const PROCESS: Kind = Kind::Process;

fn program(word: &str) -> Arc<Program> {
    Arc::new(Program {
        path: "/bin/sleep".into(),
        arguments: vec![word.into()],
        environment: Vec::new(),
        directory: "/".into(),
        mounts: Vec::new(),
        held: hotlease_sandbox::KeepAlive::default(),
    })
}

async fn until(what: impl Fn() -> bool) {
    let waited = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), waited).await.expect("it never holds");
}

/// Idle memory that never runs short, on any host.
fn enough() -> Arc<IdleMemory> {
    Arc::new(IdleMemory::from_files("", ""))
}

impl Spares {
    /// Whether there is nothing to start.
    fn is_idle(&self) -> bool {
        self.table().next_actions(self.begun.elapsed()).start.is_none()
    }
}

/// Runs a lease that ends well.
fn lease(spares: &Spares, program: &Arc<Program>, workers: usize) {
    spares.lease_began("ann", PROCESS, program, workers);
    spares.lease_over("ann", PROCESS, program, (workers, true));
}

/// Makes a set of at most two spares whose keeper does not run yet.
fn unkept(memory: Arc<IdleMemory>) -> (Spares, Launcher) {
    let launcher = Launcher::new(Path::new("/bin/sleep")).expect("a program");
    (Spares::new(launcher.clone(), Arc::default(), memory, 2), launcher)
}

fn keep(spares: Spares) -> (Arc<Spares>, tokio::task::JoinHandle<()>) {
    let spares = Arc::new(spares);
    let keeper = tokio::spawn(Arc::clone(&spares).keep_them());
    (spares, keeper)
}

fn some() -> (Arc<Spares>, Launcher, tokio::task::JoinHandle<()>) {
    let (spares, launcher) = unkept(enough());
    let (spares, keeper) = keep(spares);
    (spares, launcher, keeper)
}

async fn close(spares: &Spares, keeper: tokio::task::JoinHandle<()>) {
    spares.close();
    keeper.await.expect("the keeper ends");
}

async fn all_gone(launcher: &Launcher) {
    let gone = timeout(Duration::from_secs(10), launcher.all_gone()).await;
    gone.expect("nothing is left");
}

#[tokio::test]
async fn a_spare_is_for_its_tenant_and_its_program_only() {
    let (spares, launcher, keeper) = some();
    let (this, other) = (program("1000"), program("1001"));
    lease(&spares, &this, 1);
    until(|| spares.listing().len() == 1).await;
    assert!(spares.take("bob", PROCESS, &this).is_none(), "another tenant got it");
    assert!(spares.take("ann", PROCESS, &other).is_none(), "another program got it");
    assert!(
        spares.take("ann", Kind::Namespace, &this).is_none(),
        "another kind of sandbox got it"
    );
    let taken = spares.take("ann", PROCESS, &program("1000"));
    assert!(
        taken.is_some() && spares.take("ann", PROCESS, &this).is_none(),
        "it is there once"
    );
    drop(taken);
    close(&spares, keeper).await;
    all_gone(&launcher).await;
}

#[tokio::test]
async fn there_are_never_more_than_the_limit_and_none_once_the_node_is_drained() {
    let (spares, launcher, keeper) = some();
    for word in ["1000", "1001", "1002", "1003"] {
        lease(&spares, &program(word), 5);
        assert!(spares.listing().len() <= 2);
    }
    let newest = program("1003");
    let are_of_the_newest = || {
        let table = spares.table();
        let mut kept = table.kept.iter();
        table.kept.len() == 2 && kept.all(|(kind, _)| kind.is("ann", PROCESS, &newest))
    };
    until(are_of_the_newest).await;
    spares.keep(0);
    until(|| launcher.living() == 0).await;
    lease(&spares, &program("1000"), 1);
    assert!(spares.is_idle(), "a drained node starts one");
    close(&spares, keeper).await;
}

#[tokio::test]
async fn a_spare_that_no_lease_asks_for_is_killed() {
    let (mut spares, launcher) = unkept(enough());
    spares.wait_least = Duration::from_millis(200);
    let (spares, keeper) = keep(spares);
    lease(&spares, &program("1000"), 1);
    until(|| launcher.living() == 1).await;
    until(|| launcher.living() == 0).await;
    assert!(spares.is_idle());
    close(&spares, keeper).await;
}

#[tokio::test]
async fn leases_that_overlap_leave_as_many_as_were_there_at_once_and_none_while_they_run() {
    let (spares, launcher, keeper) = some();
    let this = program("1000");
    spares.lease_began("ann", PROCESS, &this, 1);
    spares.lease_began("ann", PROCESS, &this, 1);
    assert!(spares.is_idle(), "workers in use need no waiting ones");
    spares.lease_over("ann", PROCESS, &this, (1, true));
    until(|| spares.listing().len() == 1).await;
    let (left, _) = spares
        .lease_over("ann", PROCESS, &this, (1, true))
        .expect("it is known");
    assert_eq!(left, 2);
    until(|| spares.listing().len() == 2).await;
    close(&spares, keeper).await;
    all_gone(&launcher).await;
}

#[tokio::test]
async fn a_spare_that_dies_is_not_started_again_and_again() {
    let (spares, launcher, keeper) = some();
    let this = program("0");
    lease(&spares, &this, 2);
    let has_given_up = || spares.table().demands.iter().all(|demand| demand.given_up);
    until(|| has_given_up() && launcher.living() == 0).await;
    assert!(spares.is_idle() && spares.listing().is_empty());
    // A lease that has failed does not allow starts again.
    spares.lease_began("ann", PROCESS, &this, 1);
    spares.lease_over("ann", PROCESS, &this, (1, false));
    assert!(spares.is_idle());
    close(&spares, keeper).await;
}

#[test]
fn while_one_is_made_for_long_no_second_one_is_and_another_program_has_its_turn() {
    let (spares, _) = unkept(enough());
    let (this, other) = (program("1000"), program("1001"));
    let turn = || {
        let start = spares.table().next_actions(spares.begun.elapsed()).start;
        start.map(|(kind, _)| kind.program.arguments.clone())
    };
    lease(&spares, &this, 1);
    assert_eq!(turn(), Some(this.arguments.clone()));
    let of = SpareKey::of("ann", PROCESS, &this);
    spares.table().update_demand(&of, |demand| demand.is_starting = true);
    assert_eq!(turn(), None);
    lease(&spares, &other, 1);
    assert_eq!(turn(), Some(other.arguments.clone()));
    // With a limit of one, the spare of `this` that is being started leaves no room for a spare of `other`.
    lease(&spares, &this, 1);
    spares.keep(1);
    assert_eq!(turn(), None);
}

#[tokio::test]
async fn memory_that_others_need_is_given_back_at_once_and_none_is_borrowed_before_there_is_enough() {
    let (spares, launcher, keeper) = some();
    lease(&spares, &program("1000"), 2);
    until(|| spares.listing().len() == 2).await;
    let begin = Instant::now();
    assert_eq!(spares.give_back(), 2);
    all_gone(&launcher).await;
    eprintln!("given back in {:?}", begin.elapsed());
    lease(&spares, &program("1000"), 1);
    assert!(spares.is_idle(), "one is started while memory is short");
    spares.borrow_again();
    until(|| spares.listing().len() == 1).await;
    close(&spares, keeper).await;
}

#[tokio::test]
async fn no_spare_is_started_if_less_than_a_tenth_of_the_memory_is_idle() {
    let folder = tempfile::tempdir().expect("a folder");
    let meminfo = folder.path().join("meminfo");
    std::fs::write(&meminfo, "MemTotal: 1000 kB\nMemAvailable: 99 kB\n").expect("written");
    let (spares, _) = unkept(Arc::new(IdleMemory::from_files(&meminfo, "")));
    let (spares, keeper) = keep(spares);
    lease(&spares, &program("1000"), 1);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(spares.listing().is_empty());
    std::fs::write(&meminfo, "MemTotal: 1000 kB\nMemAvailable: 500 kB\n").expect("written");
    until(|| spares.listing().len() == 1).await;
    close(&spares, keeper).await;
}

#[test]
fn programs_that_are_known_are_bounded_and_the_last_ones() {
    let (spares, _) = unkept(enough());
    for number in 0..=PROGRAMS_MAX {
        lease(&spares, &program(&number.to_string()), 1);
    }
    assert_eq!(spares.table().demands.len(), PROGRAMS_MAX);
    let gone = spares.lease_over("ann", PROCESS, &program("0"), (1, true));
    assert!(gone.is_none(), "the first one is remembered");
}

#[test]
fn a_spare_that_no_lease_needs_keeps_no_image_mounted() {
    let (mut spares, _) = unkept(enough());
    spares.wait_least = Duration::from_millis(1);
    let image = Arc::new(());
    let with_image = || {
        Arc::new(Program {
            held: KeepAlive::new(Arc::clone(&image) as Arc<dyn std::any::Any + Send + Sync>),
            ..(*program("1000")).clone()
        })
    };
    lease(&spares, &with_image(), 1);
    assert_eq!(Arc::strong_count(&image), 2, "its spare needs it");
    std::thread::sleep(Duration::from_millis(5));
    assert!(spares.is_idle());
    assert_eq!(Arc::strong_count(&image), 1);
    lease(&spares, &with_image(), 1);
    spares.close();
    assert_eq!(Arc::strong_count(&image), 1, "a stopped agent keeps it mounted");
}
