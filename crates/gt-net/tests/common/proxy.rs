//! A proxy that breaks connections.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use gt_net::addr::Addr;

/// Forwards one port to another until told to cut, and refuses while it is closed.
pub struct Proxy {
    pub addr: Addr,
    live: Arc<Mutex<Vec<TcpStream>>>,
    pub open: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(to: &Addr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string().parse().unwrap();
        let (live, open) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(true)));
        let (to, streams, is_open) = (to.to_string(), live.clone(), open.clone());
        thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.unwrap();
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(&to) else { continue };
                near.set_nodelay(true).and(far.set_nodelay(true)).unwrap();
                for (mut from, mut into) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    thread::spawn(move || {
                        let mut buffer = [0; 1500];
                        while let Ok(count @ 1..) = from.read(&mut buffer) {
                            if into.write_all(&buffer[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().unwrap().extend([near, far]);
            }
        });
        Proxy { addr, live, open }
    }

    pub fn cut(&self) {
        for stream in self.live.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
