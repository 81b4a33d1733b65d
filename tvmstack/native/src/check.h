// Does an artifact fit this machine? The promises and the words of `tvmstack.artifact.check`; nothing is executed.
#pragma once
#include "file.h"
#include "manifest.h"

namespace tvmstack {

// Throws an artifact error for the first promise that is broken.
void Require(const File& file, const Manifest& manifest, bool digests);

// Physical cores this process may use: by affinity, SMT siblings and cgroup quota.
int PhysicalCores();

}  // namespace tvmstack
