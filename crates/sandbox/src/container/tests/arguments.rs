//! Arguments of a runtime that cannot be run here, and error messages for operators without a runtime.

use super::*;

/// A runtime that prints its arguments, and what it sees of the host.
const TELLS: &str = "#!/bin/sh\nfor word; do echo \"$word\"; done\nenv | grep ENV_ | sort\nid -u\ntest -e /usr/bin/env && echo host\nls /tmp\n";

#[tokio::test]
async fn a_runtime_that_needs_the_host_gets_its_words_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open()).expect("set");
    let program = folder.path().join("apptainer");
    fs::write(&program, TELLS).expect("written");
    fs::set_permissions(&program, open()).expect("set");
    let image = folder.path().join("image.sif");
    fs::write(&image, "").expect("written");
    let container = Container {
        runtime: program.clone().into(),
        image: Some(image.clone()),
    };
    let launcher = launcher(container, Policy::default());
    let lacking = match launcher.find_lacking(Kind::Container) {
        Ok(lacking) => lacking,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    assert!(
        lacking.iter().any(|lacking| lacking.contains("system calls")),
        "{lacking:?}"
    );
    let said = output_of(&launcher, "true").await;
    let image = image.canonicalize().expect("it is there");
    let words = format!("{}\n/bin/sh\n-c\ntrue\n", image.display());
    assert!(said.contains(&words) && said.contains("--pwd=/tmp\n"), "{said}");
    assert!(
        said.contains("APPTAINERENV_OWN=its\n") && said.contains("\n1000\nhost\n"),
        "{said}"
    );
    // The program sees nothing of the host's /tmp except the folder that it needs to run.
    let top = folder.path().components().nth(2).expect("a folder in /tmp");
    let top = top.as_os_str().to_string_lossy();
    assert!(
        !folder.path().starts_with("/tmp") || said.ends_with(&format!("host\n{top}\n")),
        "{said}"
    );
}

#[test]
fn a_missing_part_is_reported_with_a_remedy() {
    let image = |runtime: &str, path: &str| Container {
        image: Some(path.into()),
        ..of(runtime)
    };
    for (container, said) in [
        (of("docker"), "crun, ch-run"),
        (of("/opt/bin/docker"), "no container runtime that is known"),
        (of("/no/such/crun"), "apt-get install crun"),
        (of("/no/such/ch-run"), "apt-get install charliecloud"),
        (of("/etc/crun"), "--sandbox-container"),
        (of("sarus"), "crun, ch-run"),
        (image("/no/such/crun", "/"), "is not there"),
    ] {
        let why = launcher(container.clone(), Policy::default()).check_available(Kind::Container);
        let why = why.expect_err("there is none");
        assert!(why.contains(said), "{container:?}: {why}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["crun", "apptainer"] {
        let program = folder.path().join(name);
        fs::write(&program, "#!/bin/sh\nexit 1\n").expect("written");
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(program, runs).expect("set");
    }
    let of = |name: &str, image: Option<&str>| Container {
        runtime: folder.path().join(name).into(),
        image: image.map(PathBuf::from),
    };
    for (container, said) in [
        (of("crun", Some("/etc/passwd")), "is no folder"),
        (of("crun", Some("/no/such/image")), "/no/such/image cannot be read"),
        (of("apptainer", None), "--sandbox-image"),
    ] {
        let why = container.resolve().expect_err("nothing to be made of");
        assert!(why.contains(said), "{container:?}: {why}");
    }
    assert!(Container::default().confines() && !of("ch-run", None).confines());
}
