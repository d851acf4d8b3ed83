//! Images from packing to mounting, with real trees, damage, crashes and hostile images. What needs mksquashfs or a way of mounting
//! says so and is skipped where there is none.

mod caches;
mod crashes;
mod damage;
mod hostile;
mod mounting;
mod neighbours;
mod packing;
mod scene;
