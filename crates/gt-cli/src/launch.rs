//! `gt launch`: a server here and workers on other hosts, started over ssh and ended together.

use crate::{stop_on_signals, token, wait};
use gt_ir::{Error, Result, bail};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Hosts that get workers, separated by commas; a host may be written `user@name`, or `name=4` for four workers.
    #[arg(long, value_delimiter = ',', required = true)]
    hosts: Vec<String>,
    /// Workers on each host; by default one for each of its GPUs, or a single one without.
    #[arg(long)]
    per_host: Option<u32>,
    /// Port of the server; 0 picks a free one.
    #[arg(short, long, default_value_t = 12345)]
    port: u16,
    /// The name or address under which the hosts reach this machine; found out unless given.
    #[arg(long)]
    address: Option<String>,
    /// What to run instead of ssh; it is called with the host and a command for the shell there.
    #[arg(long, default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10")]
    ssh: String,
    /// How the program is called on every host, and here.
    #[arg(long, default_value = "gt")]
    gt: String,
    /// More arguments for every worker, such as `--threads 2`.
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    worker_args: String,
    /// File with the token to use; without one a new token is made for this launch.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// Seconds until every worker has to be there.
    #[arg(long, default_value_t = 120.0)]
    timeout: f64,
    /// A command to run once the workers are there, with GT_SERVER and GT_TOKEN_FILE set. When it ends, all ends.
    #[arg(last = true)]
    command: Vec<String>,
}

/// One host and how many workers it gets; none for as many as it has GPUs.
struct Host {
    name: String,
    workers: Option<u32>,
}

/// A connection to a host, and the workers that live as long as it does.
struct Remote {
    host: String,
    child: Child,
    /// While this is open the workers run.
    stdin: Option<ChildStdin>,
}

/// What a host says, line by line; none once it has no more to say.
type Lines = Receiver<(usize, Option<String>)>;

pub fn run(args: Args) -> Result<i32> {
    let stop = stop_on_signals()?;
    let hosts = hosts(&args)?;
    let folder = Folder::new()?;
    let token = match token::read(args.token_file.as_deref())? {
        Some(token) => token,
        None => random_token()?,
    };
    let token_file = folder.write("token", &token)?;
    let deadline = Instant::now() + Duration::from_secs_f64(args.timeout.clamp(0.0, 1e6));

    let mut server = start_server(&args, &token_file)?;
    let port = server_port(&mut server.0)?;
    let addresses = match &args.address {
        Some(address) => vec![address.clone(); hosts.len()],
        None => own_addresses(&hosts, port)?,
    };
    let loopback = |a: &&String| a.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let address = addresses.iter().find(|a| !loopback(a)).unwrap_or(&addresses[0]);
    println!("gt launch: the server listens on {address}:{port}");

    let (mut remotes, lines) = start_workers(&args, &hosts, &addresses, port, &token)?;
    let result = wait_for_all(&hosts, &mut remotes, &lines, port, &token, deadline, &stop);
    let status = match result {
        Ok(names) => {
            let count = hosts.len();
            println!("gt launch: {} workers on {count} host(s) are ready", names.len());
            println!(
                "gt launch: connect with GT_SERVER={address}:{port} GT_TOKEN_FILE={}",
                token_file.display()
            );
            stay(&args, &mut remotes, &mut server.0, &lines, port, &token_file, &stop)
        }
        Err(error) => Err(error),
    };
    for remote in &mut remotes {
        remote.stdin.take();
    }
    end(remotes);
    status
}

fn hosts(args: &Args) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    for host in args.hosts.iter().map(|h| h.trim()).filter(|h| !h.is_empty()) {
        let (name, workers) = match host.rsplit_once('=') {
            Some((name, count)) => match count.parse() {
                Ok(n) if n > 0 => (name, Some(n)),
                _ => bail!(Value, "launch: {host}: expected a number of workers after =, got {count:?}"),
            },
            None => (host, args.per_host),
        };
        if name.is_empty() || name.starts_with('-') {
            bail!(Value, "launch: {host:?} is no name of a host");
        }
        hosts.push(Host { name: name.into(), workers });
    }
    if hosts.is_empty() {
        bail!(Value, "launch: no hosts: name them with --hosts a,b,c");
    }
    if args.per_host == Some(0) {
        bail!(Value, "launch: --per-host: expected at least 1");
    }
    Ok(hosts)
}

/// A folder of this launch, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("gt-launch-{}-{}", std::process::id(), random_token()?));
        let made =
            std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&path);
        made.map_err(|e| Error::Runtime(format!("launch: cannot make {}: {e}", path.display())))?;
        Ok(Folder(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::write(&path, text)
            .map_err(|e| Error::Runtime(format!("launch: cannot write {}: {e}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn random_token() -> Result<String> {
    let mut bytes = [0u8; 16];
    let read =
        std::fs::File::open("/dev/urandom").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut bytes));
    read.map_err(|e| Error::Runtime(format!("launch: no random numbers for a token: {e}")))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// A child that does not outlive its owner.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // SIGTERM first: a server tells its clients goodbye.
        // SAFETY: the child is ours and has not been waited for, so its number is still its own.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(3);
        while Instant::now() < deadline {
            if matches!(self.0.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A word for the shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn start_server(args: &Args, token_file: &std::path::Path) -> Result<Owned> {
    let file = quoted(&token_file.display().to_string());
    let line = format!("exec {} server --host 0.0.0.0 -p {} --token-file {file}", args.gt, args.port);
    let child = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    child.map(Owned).map_err(|e| Error::Runtime(format!("launch: cannot start the server: {e}")))
}

/// The port in what the server prints.
fn server_port(server: &mut Child) -> Result<u16> {
    let out =
        server.stdout.take().ok_or_else(|| Error::Runtime("launch: the server has no output".into()))?;
    let (send, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(|l| l.ok()) {
            let _ = send.send(line);
        }
    });
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        if let Some(port) = line.rsplit_once(':').and_then(|(_, port)| port.trim().parse().ok()) {
            return Ok(port);
        }
    }
    bail!(
        Runtime,
        "launch: the server did not start: see what it printed above, and whether --gt names the program"
    )
}

/// The address of this machine on the way to each of the hosts. Names that only ssh knows get the one on the way to the
/// others, else to the world.
fn own_addresses(hosts: &[Host], port: u16) -> Result<Vec<String>> {
    let towards = |host: &Host| {
        let name = host.name.rsplit('@').next().unwrap_or(&host.name);
        (name, port).to_socket_addrs().ok().and_then(|mut found| found.find_map(address_towards))
    };
    let found: Vec<Option<IpAddr>> = hosts.iter().map(towards).collect();
    let elsewhere = || found.iter().flatten().copied().find(|ip| !ip.is_loopback());
    // Of the addresses kept for documentation: nobody has them, so the way there is the way out.
    let world = || address_towards((Ipv4Addr::new(198, 51, 100, 1), port).into());
    let other = elsewhere().or_else(world);
    let choose = |own: &Option<IpAddr>| own.or(other).map(|ip| ip.to_string());
    found.iter().map(choose).collect::<Option<Vec<String>>>().ok_or_else(|| {
        Error::Value(
            "launch: no way to the hosts was found: say with --address how they reach this machine".into(),
        )
    })
}

/// The address under which something there sees this machine.
fn address_towards(goal: SocketAddr) -> Option<IpAddr> {
    let any = if goal.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    // Nothing is sent: the system only says which address it would use.
    let own = UdpSocket::bind(any).and_then(|s| s.connect(goal).and_then(|_| s.local_addr()));
    own.ok().map(|own| own.ip())
}

/// What the shell of a host runs: the token comes first on its input, and when that ends, so do the workers.
fn script(args: &Args, host: &Host, address: &str, port: u16) -> String {
    let count = match host.workers {
        Some(n) => format!("n={n}"),
        None => "n=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU'); [ \"$n\" -gt 0 ] || n=1".into(),
    };
    let name = host.name.rsplit('@').next().unwrap_or(&host.name);
    let worker = format!(
        "{} worker --host {} -p {port} --token-file \"$f\" --name {}-\"$i\" {}",
        args.gt,
        quoted(address),
        quoted(name),
        args.worker_args
    );
    // Each worker sees one GPU where there are several workers and GPUs.
    let device = "g=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU'); \
                  [ \"$g\" -gt 0 ] && export CUDA_VISIBLE_DEVICES=$((i % g))";
    [
        "umask 077; f=$(mktemp) || exit 1; trap 'rm -f \"$f\"' EXIT",
        "head -n 1 > \"$f\"; exec 3<&0 </dev/null",
        &count,
        "echo \"gt-launch-workers $n\"; pids=",
        &format!(
            "i=0; while [ $i -lt $n ]; do ( {device}; exec {worker} ) & pids=\"$pids $!\"; i=$((i+1)); done"
        ),
        "( cat <&3 >/dev/null; kill $pids 2>/dev/null ) & watch=$!",
        "exec 3<&-; for p in $pids; do wait $p; s=$?; [ $s -eq 0 ] || worst=$s; done",
        "kill $watch 2>/dev/null; exit ${worst:-0}",
    ]
    .join("\n")
}

fn start_workers(
    args: &Args,
    hosts: &[Host],
    addresses: &[String],
    port: u16,
    token: &str,
) -> Result<(Vec<Remote>, Lines)> {
    let (send, lines) = channel();
    let mut remotes = Vec::new();
    for (i, host) in hosts.iter().enumerate() {
        let line = format!("exec {} \"$@\"", args.ssh);
        // ssh hands its arguments to a shell over there.
        let there = format!("sh -c {}", quoted(&script(args, host, &addresses[i], port)));
        let mut command = Command::new("sh");
        command.args(["-c", &line, "sh", &host.name, &there]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| Error::Runtime(format!("launch: cannot run {:?}: {e}", args.ssh)))?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // A host that cannot be reached closes its end; what it says is told below.
            let _ = writeln!(stdin, "{token}");
        }
        let outputs: [Option<Box<dyn std::io::Read + Send>>; 2] = [
            child.stdout.take().map(|o| Box::new(o) as Box<dyn std::io::Read + Send>),
            child.stderr.take().map(|o| Box::new(o) as Box<dyn std::io::Read + Send>),
        ];
        for out in outputs.into_iter().flatten() {
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(|l| l.ok()) {
                    let _ = send.send((i, Some(line)));
                }
                let _ = send.send((i, None));
            });
        }
        remotes.push(Remote { host: host.name.clone(), child, stdin });
    }
    Ok((remotes, lines))
}

/// Waits until the workers of all hosts are connected. A host that gives up ends the wait.
fn wait_for_all(
    hosts: &[Host],
    remotes: &mut [Remote],
    lines: &Lines,
    port: u16,
    token: &str,
    deadline: Instant,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<String>> {
    // How many workers each host starts, once it has said so.
    let mut counts: Vec<Option<u32>> = hosts.iter().map(|_| None).collect();
    while counts.iter().any(Option::is_none) {
        if stop.load(Ordering::Relaxed) {
            bail!(Runtime, "launch: interrupted while waiting for the hosts");
        }
        match lines.recv_timeout(Duration::from_millis(100)) {
            Ok((i, Some(line))) => match line.strip_prefix("gt-launch-workers ").map(|n| n.trim().parse()) {
                Some(Ok(n)) => counts[i] = Some(n),
                _ => println!("[{}] {line}", remotes[i].host),
            },
            Ok((_, None)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {}
        }
        ended(remotes, lines)?;
        if Instant::now() >= deadline {
            let silent = hosts.iter().zip(&counts).filter(|(_, c)| c.is_none());
            let silent: Vec<&str> = silent.map(|(h, _)| h.name.as_str()).collect();
            bail!(
                Connection,
                "launch: no answer from {}: can ssh log in there without a password?",
                silent.join(", ")
            );
        }
    }
    let wanted = counts.iter().flatten().sum();
    println!("gt launch: waiting for {wanted} workers on {} host(s)", hosts.len());
    let mut look = || {
        show(remotes, lines);
        ended(remotes, lines)
    };
    let here = format!("127.0.0.1:{port}");
    wait::for_workers(&here, Some(token.into()), wanted, deadline, stop, &mut look)
}

fn show(remotes: &[Remote], lines: &Lines) {
    for (i, line) in lines.try_iter() {
        if let Some(line) = line {
            println!("[{}] {line}", remotes[i].host);
        }
    }
}

/// An error if a host's workers have ended.
fn ended(remotes: &mut [Remote], lines: &Lines) -> Result<()> {
    for i in 0..remotes.len() {
        if let Ok(Some(status)) = remotes[i].child.try_wait() {
            std::thread::sleep(Duration::from_millis(100));
            show(remotes, lines);
            let host = &remotes[i].host;
            bail!(Runtime, "launch: {host}: its workers ended ({status}): what they printed is above");
        }
    }
    Ok(())
}

/// Runs the user's command, or stays until Ctrl-C or until a host's workers end.
fn stay(
    args: &Args,
    remotes: &mut [Remote],
    server: &mut Child,
    lines: &Lines,
    port: u16,
    token_file: &std::path::Path,
    stop: &Arc<AtomicBool>,
) -> Result<i32> {
    let mut command = match args.command.split_first() {
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command.args(rest).env("GT_SERVER", format!("127.0.0.1:{port}")).env("GT_TOKEN_FILE", token_file);
            let child = command.spawn();
            Some(Owned(child.map_err(|e| Error::Runtime(format!("launch: cannot run {program}: {e}")))?))
        }
        None => None,
    };
    loop {
        show(remotes, lines);
        if let Some(Owned(child)) = &mut command
            && let Ok(Some(status)) = child.try_wait()
        {
            return Ok(status.code().unwrap_or(1));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(if command.is_some() { 130 } else { 0 });
        }
        if let Ok(Some(status)) = server.try_wait() {
            bail!(Runtime, "launch: the server ended ({status})");
        }
        // A program that runs is told of lost workers by the server, and may go on without them.
        if command.is_none() {
            ended(remotes, lines)?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits a moment for the hosts to end their workers, then cuts the connections.
fn end(remotes: Vec<Remote>) {
    let deadline = Instant::now() + Duration::from_secs(5);
    for mut remote in remotes {
        while Instant::now() < deadline && matches!(remote.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(Owned(remote.child));
    }
}
