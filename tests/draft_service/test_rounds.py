"""probe"""
import time
async def test_speed(tiers, write_table, rounds):
    from paceline.records import SamplingParams
    p=write_table(.5,.3,.2); q=write_table(.4,.4,.2)
    v=await tiers.verify(p, max_length=100000); d=await tiers.draft(q, max_length=100000)
    for k in (1,4):
        for n in (1,8):
            s=[rounds.spec([0],sampling=SamplingParams(),seed=i+1) for i in range(n)]
            vs=[await v.open(x) for x in s]; ds=[await d.open(x) for x in s]
            t=time.time()
            ts=await rounds.together(*[rounds.run(a,b,1,2000//n,lambda _: k) for a,b in zip(vs,ds)])
            dt=time.time()-t; r=sum(x.num_rounds for x in ts)
            print(k,n,"rounds/s",r/dt,"tok/s",2000/dt,"acc",sum(x.num_accepted for x in ts)/sum(x.num_drafted for x in ts))
async def test_half(tiers, networks, rounds):
    import itertools
    v=await tiers.verify(networks.find())
    for kind in ("target","never","half"):
        d=await tiers.draft(networks.find(kind))
        a=await v.open(rounds.spec([5,6,7])); b=await d.open(rounds.spec([5,6,7]))
        t=time.time()
        r=await rounds.run(a,b,3,60,lambda _:4)
        print(kind,r.outcomes,time.time()-t, r.token_ids==networks.generate([5,6,7],60), len(set(r.token_ids)))
