// Whether all ranks registered the same sites and scalars and plan the same for them: what a merge by position rests
// on.
#ifndef KEEL_COLLECTORS_MPI_SITE_AGREEMENT_H
#define KEEL_COLLECTORS_MPI_SITE_AGREEMENT_H

#include <mpi.h>

#include "probe/keel.h"

// Collective and blocking over COMM. PLANS NULL: this rank could not start; it gets KEEL_ERR_COMM with its own
// keel_error() kept. Where tables differ every rank gets KEEL_ERR_USAGE and the same text: the first difference in rank
// 0's order, the lowest rank that has it, and what both registered. What a rank must have for itself, its number as a
// replica, is not compared.
keel_status keel_site_agreement(MPI_Comm comm, const keel_probe *probe, const keel_site_plan *plans);

#endif
